// The driver's part of the catalogue: the machine refused a call.

import { formatAddress, formatBytes, formatNumber } from './format.js';
import type { CatalogueEntry } from './details.js';
import { aftermath, apiVersion, callResult, joined, statusText, unavailable } from './phrases.js';

type DriverCode =
  | 'KV_DRIVER_UNAVAILABLE' | 'KV_DRIVER_UNSUPPORTED' | 'KV_DRIVER_TOO_OLD' | 'KV_CUBLAS_UNAVAILABLE'
  | 'KV_KERNELS_REFUSED' | 'KV_COMMAND_FAILED' | 'KV_DRIVER_CALL_FAILED' | 'KV_DRIVER_LOST' | 'KV_DRIVER_MISUSE';

/** A kernel touched what has no memory: of all causes the one that the cache's caller can remove. */
const forgottenFence = ' A kernel used memory that is not mapped: if its work goes on behind a `commit` or `release` ' +
  'on a stream of its own, name that stream (`stream`, `fence`).';

export const driverCodes: { readonly [C in DriverCode]: CatalogueEntry<C> } = {
  KV_DRIVER_UNAVAILABLE: {
    class: 'KvDriverError',
    recovery: 'fix',
    template: (details) => `No ${details.driver} driver here: ${unavailable[details.reason](details)}`,
  },
  KV_DRIVER_UNSUPPORTED: {
    class: 'KvDriverError',
    recovery: 'fix',
    template: ({ device, deviceName, feature }) =>
      `Device ${device}${deviceName ? ` (${deviceName})` : ''} does not support ${feature}. Choose another device with ` +
      "`device`, or `driver: 'host'`.",
  },
  KV_DRIVER_TOO_OLD: {
    class: 'KvDriverError',
    recovery: 'fix',
    template: ({ missing, driverVersion }) =>
      `libcuda.so.1 lacks \`${missing}\` (driver API ${apiVersion(driverVersion)}; 10.2 or later is needed). ` +
      'Update the NVIDIA driver.',
  },
  KV_CUBLAS_UNAVAILABLE: {
    class: 'KvDriverError',
    recovery: 'fix',
    template: ({ missing }) =>
      `cuBLAS ${missing === undefined ? 'could not be opened' : `lacks \`${missing}\``}. Give \`cublas\` the path of a ` +
      "libcublas.so since CUDA 11.2 whose own libraries are found, or 'auto' or 'off' to do without.",
  },
  KV_KERNELS_REFUSED: {
    class: 'KvDriverError',
    recovery: 'fix',
    template: ({ log, ...call }) =>
      `The driver refused the CUDA kernels: \`${call.call}\`: ${statusText(call)}` +
      `${log === '' ? '' : `, "${log.trim().split('\n')[0]!.trim()}"`}. `
        + (call.statusName === 'CUDA_ERROR_OUT_OF_MEMORY'
        ? 'Load them before the cache fills the device (`loadKernels`), or raise `headroomBytes`.'
        : 'Update the NVIDIA driver, or name kernels that were compiled for it with `VKV_KERNELS`.'),
  },
  KV_COMMAND_FAILED: {
    class: 'KvDriverError',
    recovery: 'retry',
    template: ({ command }) =>
      `Command ${formatNumber(command)} of the work queued on a stream failed, and those behind it were dropped. Discard the batch ` +
      'and compute the pass again; `cause` says what failed.',
  },
  KV_DRIVER_CALL_FAILED: {
    class: 'KvDriverError',
    recovery: 'retry',
    template: ({ address, bytes, slot, ...call }) => {
      const range = joined(bytes ? formatBytes(bytes) : '', address ? `at ${formatAddress(address)}` : '');
      const where = (slot === undefined ? '' : ` for slot ${slot}`) + (range && ` (${range})`);
      const result = call.statusName || call.status ? `: ${statusText(call)}` : '';
      const remedy = call.call === 'pthread_create'
        ? 'This process may start no more threads: close caches that it does not need, or raise its limits ' +
          '(`ulimit -u`, `ulimit -v`, `pids.max` of its cgroup).'
        : `${aftermath(call.call)} Retry once; if it repeats, run with the mock driver to check the call order.`;
      return `\`${call.call}\` failed${where}${result}. ${remedy}`;
    },
  },
  KV_DRIVER_LOST: {
    class: 'KvDriverError',
    recovery: 'restart',
    template: ({ driver, ...call }) =>
      `The ${driver} driver has failed for good${callResult(call)}. Every later call will fail; close the cache and ` +
      `restart the process.${call.statusName === 'CUDA_ERROR_ILLEGAL_ADDRESS' ? forgottenFence : ''}`,
  },
  KV_DRIVER_MISUSE: {
    class: 'KvDriverError',
    recovery: 'report',
    template: ({ call, address, bytes }) => {
      const handle = handleOf(call);
      return (handle === undefined
        ? `\`${call}\` broke a rule of the driver, at ${formatAddress(address)}${bytes > 0 ? ` (${formatBytes(bytes)})` : ''}. `
        : `\`${call}\` refused the ${handle} ${formatAddress(address)}: it does not exist, or was destroyed before its last use. `) +
        'With the mock driver, print `journal()` for the history.';
    },
  },
};

/** What the number is that a call works on, where that is no address. */
function handleOf(call: string): 'stream' | 'event' | undefined {
  if (/^cuStream|^cuEventRecord$|Stream$/.test(call)) return 'stream';
  return /^cuEvent|Event$/.test(call) ? 'event' : undefined;
}
