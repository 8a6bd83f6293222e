// The one list of error codes: class, recovery and message of each. A message is "what failed: the numbers. What to
// do.", at most three sentences, sizes with units, option names in backticks. Nothing parses a message; `details` has
// the numbers. docs/errors.md has a section per code. Codes of the addon are mapped in native-codes.ts.

import { formatAddress, formatBytes, formatCount, formatList, formatNumber } from '../format.js';
import type { Recovery } from './classes.js';
import type { DriverCall, ErrorCode, ErrorDetails, UnavailableReason } from './details.js';

export type ErrorClass =
  | 'TypeError' | 'RangeError'
  | 'KvError' | 'KvStateError' | 'KvCapacityError' | 'KvDriverError' | 'KvAbortError';

export interface CatalogueEntry<C extends ErrorCode = ErrorCode> {
  /** By name; a function when the details decide. */
  readonly class: ErrorClass | ((details: ErrorDetails[C]) => ErrorClass);
  readonly recovery: Recovery;
  /** The message. Never throws, whatever the numbers are. */
  readonly template: (details: ErrorDetails[C]) => string;
}

export const catalogue: { readonly [C in ErrorCode]: CatalogueEntry<C> } = {
  // Mistakes in the call: nothing has changed.

  KV_UNKNOWN_OPTION: {
    class: 'TypeError',
    recovery: 'fix',
    template: ({ owner, option, suggestion }) =>
      `Unknown option \`${option}\` for ${owner}.` + (suggestion ? ` Did you mean \`${suggestion}\`?` : ''),
  },
  KV_INVALID_OPTION: {
    class: ({ reason }) => (reason === 'type' ? 'TypeError' : 'RangeError'),
    recovery: 'fix',
    template: ({ option, expected, received, hint }) =>
      received === undefined
        ? joined(`\`${option}\` must be ${expected}; it is missing.`, hint)
        : joined(`\`${option}\` must be ${expected}, got ${describe(received)}.`, hint),
  },
  KV_INVALID_SHAPE: {
    class: 'RangeError',
    recovery: 'fix',
    template: ({ option, value, problem, hint }) =>
      joined(`\`${option}\` is ${formatNumber(value, 3)} and ${problem}.`, hint),
  },
  KV_LENGTH_OUT_OF_RANGE: {
    class: 'RangeError',
    recovery: 'fix',
    template: ({ slot, tokens, maxTokens }) =>
      `${slot === undefined ? 'A slot' : `Slot ${slot}`} cannot hold ${formatCount('token', tokens)}: its limit is ` +
      `${formatNumber(maxTokens)} (\`maxTokens\`). Truncate the request, or open the cache with a larger ` +
      '`maxTokens`; address space is cheap, pages are not used until needed.',
  },
  KV_COPY_OUT_OF_RANGE: {
    class: 'RangeError',
    recovery: 'fix',
    template: ({ call, address, bytes }) =>
      `Cannot ${call} ${formatBytes(bytes)} at ${formatAddress(address)}: not all of it is mapped. ` +
      'Touch only tokens that `prepare` has made room for.',
  },

  // State: something was used after its end, or in the wrong order.

  KV_CLOSED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, owner }) =>
      `Cannot ${operation}: the ${ownerNouns[owner]} was closed. Create a new ${owner}.`,
  },
  KV_SLOT_RELEASED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ slot, generation, currentGeneration }) =>
      `This handle to slot ${slot} is stale (generation ${generation}, now ${currentGeneration}): it was released, and ` +
      'the slot may belong to another request. Drop the sequence that `acquire` returned once it is released.',
  },
  KV_SLOT_BUSY: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ slot, operation, holder }) =>
      `Cannot ${operation} slot ${slot}: ${holder} still uses it. Await \`cache.settled()\` first.`,
  },
  KV_BATCH_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, problem }) =>
      `Cannot ${operation} this batch: it ${problem}. Use a batch in the order \`add\`, \`prepare\`, then \`commit\` or ` +
      '`discard`.',
  },
  KV_PREFIX_IN_USE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ sequences }) =>
      `Cannot reset the prefix cache: ${formatCount('sequence', sequences)} ${sequences === 1 ? 'uses' : 'use'} it. ` +
      'Release them first, or pass `preempt: true` to have them released.',
  },
  KV_DRIVER_IN_USE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ owner, users }) =>
      `Cannot close the ${ownerNouns[owner]}: ${formatCount(owner === 'Driver' ? 'page pool' : 'cache', users)} still ` +
      `${users === 1 ? 'uses' : 'use'} it. Close ${users === 1 ? 'it' : 'them'} first.`,
  },

  // Capacity: expected at run time; nothing has changed.

  KV_NO_FREE_SLOT: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ slots, retiringSlots }) =>
      `All ${formatCount('slot', slots)} are in use, ${formatNumber(retiringSlots)} of them retired but not yet idle. ` +
      'Release a sequence, await `cache.slotFree()`, or raise `slots`.',
  },
  KV_OUT_OF_PAGES: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ needRows, needPages, havePages, budgetBytes, pageBytes, slots }) =>
      `${whoCannotGrow(slots)}: ${formatCount('more page', needPages)} ${needPages === 1 ? 'is' : 'are'} needed ` +
      `(${formatCount('row', needRows)}, ${formatBytes(needPages * pageBytes)}); ${formatNumber(havePages)} of ` +
      `${formatNumber(Math.floor(budgetBytes / pageBytes))} are free. Release sequences, or raise \`memoryBudgetBytes\` ` +
      `(now ${formatBytes(budgetBytes)}).`,
  },
  KV_OUT_OF_DEVICE_MEMORY: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ pageBytes, createdPages, budgetPages, freeBytes }) =>
      `The device refused page ${formatNumber(createdPages + 1)} of ${formatNumber(budgetPages)} ` +
      `(${formatBytes(pageBytes)})${freeBytes === undefined ? '' : `: ${formatBytes(freeBytes)} is free`}, although the ` +
      `budget allows ${formatCount('more page', Math.max(0, budgetPages - createdPages))}. Another process or the model ` +
      'uses this memory; ' +
      (createdPages > 0
        ? `lower \`memoryBudgetBytes\` to about ${formatBytes(createdPages * pageBytes)}.`
        : 'free some of it.'),
  },
  KV_OUT_OF_ADDRESS_SPACE: {
    class: 'KvCapacityError',
    recovery: 'fix',
    template: ({ bytes, reservations, slots, maxTokens, limitBytes }) => {
      const parts = [
        slots === undefined ? '' : formatCount('slot', slots),
        maxTokens === undefined ? '' : formatCount('token', maxTokens),
        reservations === undefined ? '' : formatCount('reservation', reservations),
      ].filter((part) => part !== '');
      const shape = parts.length === 0 ? '' : ` (${parts.join(' × ')})`;
      const limit = limitBytes === undefined ? 'the driver refused it' : `the limit is ${formatBytes(limitBytes)}`;
      return `Cannot reserve ${formatBytes(bytes)} of addresses${shape}: ${limit}. Lower \`slots\` or \`maxTokens\`.`;
    },
  },
  KV_OUT_OF_MAPPINGS: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ neededMappings, limitMappings }) =>
      `The host driver needs ${formatCount('kernel mapping', neededMappings)}; it keeps to ` +
      `${formatNumber(limitMappings)}, half of what \`vm.max_map_count\` allows. Release sequences, use larger ` +
      `\`pageBytes\`, or run \`sysctl -w vm.max_map_count=${nextPowerOfTwo(2 * neededMappings)}\`.`,
  },
  KV_TIMEOUT: {
    class: 'KvCapacityError',
    recovery: 'retry',
    template: ({ timeoutMs, waitedFor, pendingRows }) =>
      `Waited ${formatNumber(timeoutMs, 1)} ms for ${waitedFor}` +
      (pendingRows === undefined ? '' : `; ${formatCount('row', pendingRows)} still to come`) +
      '. Raise `timeoutMs`, or map earlier with `growth: ahead(…)`.',
  },

  // Driver: the machine refused.

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
  KV_DRIVER_CALL_FAILED: {
    class: 'KvDriverError',
    recovery: 'retry',
    template: ({ address, bytes, slot, ...call }) => {
      const range = joined(bytes ? formatBytes(bytes) : '', address ? `at ${formatAddress(address)}` : '');
      const where = (slot === undefined ? '' : ` for slot ${slot}`) + (range && ` (${range})`);
      const result = call.statusName || call.status ? `: ${statusText(call)}` : '';
      return `\`${call.call}\` failed${where}${result}. What it was part of was undone. Retry once; if it repeats, run ` +
        'with the mock driver to check the call order.';
    },
  },
  KV_DRIVER_LOST: {
    class: 'KvDriverError',
    recovery: 'restart',
    template: ({ driver, ...call }) =>
      `The ${driver} driver has failed for good${callResult(call)}. Every later call will fail; close the cache and ` +
      'restart the process.',
  },
  KV_DRIVER_MISUSE: {
    class: 'KvDriverError',
    recovery: 'report',
    template: ({ call, address, bytes }) =>
      `\`${call}\` broke a rule of the driver, at ${formatAddress(address)}` +
      `${bytes > 0 ? ` (${formatBytes(bytes)})` : ''}. With the mock driver, print \`journal()\` for the history.`,
  },

  // Addon

  KV_ADDON_NOT_FOUND: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ platform, nodeVersion, tried }) =>
      `The native addon could not be loaded on ${platform}, Node ${nodeVersion}: ${placesTried(tried)}. Build it with ` +
      '`npm run build:native` or `npm rebuild virtual-kv` (needs a C++20 compiler, and CMake or python3).',
  },
  KV_ADDON_MISMATCH: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ addonVersion, packageVersion }) =>
      `The addon was built for version ${addonVersion}, the library is ${packageVersion}. Run \`npm rebuild virtual-kv\`.`,
  },

  // Files and packages that the commands use

  KV_TRACE_INVALID: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ source, line, problem }) =>
      `${source}, line ${formatNumber(line)}: ${problem}. Correct the line, or pass \`--skip-invalid\`.`,
  },
  KV_CONFIG_INVALID: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ source, problem, hint }) => joined(`${source}: ${problem}.`, hint),
  },
  KV_DEPENDENCY_MISSING: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ dependency, purpose }) =>
      `${capitalize(purpose)} needs the package \`${dependency}\`, which is not installed. ` +
      `Run \`npm install ${dependency}\`.`,
  },

  // Stopping and bugs

  KV_ABORTED: {
    class: 'KvAbortError',
    recovery: 'none',
    template: ({ operation }) => `${capitalize(operation)} was aborted.`,
  },
  KV_INTERNAL: {
    class: 'KvError',
    recovery: 'report',
    template: ({ problem, call, what, howMany }) => {
      const numbers = [call, what, howMany].filter((part) => part !== undefined && part !== '').join(', ');
      return `${capitalize(problem)}${numbers && ` (${numbers})`}. This is a bug in the package; report it with the ` +
        'output of `cache.inspect()`.';
    },
  },
};

const ownerNouns = {
  KvCache: 'cache', PagePool: 'page pool', Driver: 'driver', Mapper: 'mapper', MockDevice: 'mock device', Kernels: 'kernel set',
} as const;

const unavailable: Readonly<Record<UnavailableReason, (details: ErrorDetails['KV_DRIVER_UNAVAILABLE']) => string>> = {
  'no-library': () => "libcuda.so.1 was not found. Install the NVIDIA driver, or use `driver: 'host'`.",
  'no-device': () => "the NVIDIA driver found no GPU. Check `nvidia-smi`, or use `driver: 'host'`.",
  'stub-library': () => "libcuda.so.1 is the CUDA toolkit's stub. Put the NVIDIA driver's own library before it.",
  'init-failed': (details) => `it did not start${callResult(details)}. Check \`nvidia-smi\`, or use \`driver: 'host'\`.`,
  'no-such-device': ({ device }) => `there is no device ${device ?? ''}`.trimEnd() + '. Choose another with `device`.',
  'memory-refused': (details) => `the system refused memory${callResult(details)}. Check the limits of this process.`,
  forked: () => 'this process is a fork of the one that opened it. Open the driver after the fork.',
};

/** The parts that are there, with spaces between them. */
function joined(...parts: readonly (string | undefined)[]): string {
  return parts.filter((part) => part).join(' ');
}

function whoCannotGrow(slots: readonly number[]): string {
  if (slots.length === 0) return 'A new sequence cannot start';
  if (slots.length === 1) return `Slot ${slots[0]} cannot grow`;
  if (slots.length > 4) return `${formatNumber(slots.length)} slots of the batch cannot grow together`;
  return `Slots ${formatList(slots, 'and')} cannot grow together`;
}

/** `: cuInit said CUDA_ERROR_UNKNOWN (999)`, or nothing when no call was made. */
function callResult(call: DriverCall): string {
  return call.statusName || call.status ? `: ${call.call} said ${statusText(call)}` : '';
}

function statusText({ status, statusName }: DriverCall): string {
  return statusName === '' ? formatNumber(status) : `${statusName} (${status})`;
}

function apiVersion(version: number): string {
  return version === 0 ? 'unknown' : `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

/** The first places with their reasons; a loader may try a dozen, and `details` has them all. */
function placesTried(tried: ErrorDetails['KV_ADDON_NOT_FOUND']['tried']): string {
  const shown = tried.slice(0, 2).map(({ path, reason }) => `${path} (${reason})`);
  const others = tried.length - shown.length;
  return [...shown, ...(others > 0 ? [`${formatCount('other place', others)}`] : [])].join('; ') || 'no place was tried';
}

/** A received value in a message: short, and safe whatever it is. */
function describe(value: unknown): string {
  switch (typeof value) {
    case 'number': return Number.isFinite(value) ? formatNumber(value, 6) : String(value);
    case 'string': return value.length > 60 ? `a string of ${formatNumber(value.length)} characters` : `'${value}'`;
    case 'bigint': return `${value}n`;
    case 'function': return 'a function';
    case 'object': return value === null ? 'null' : Array.isArray(value) ? 'an array' : 'an object';
    default: return String(value);
  }
}

function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function nextPowerOfTwo(value: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, value)));
}
