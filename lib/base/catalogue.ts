// The one list of error codes: class, recovery and message of each. A message is "what failed: the numbers. What to
// do.", at most three sentences, sizes with units, option names in backticks. Nothing parses a message; `details` has
// the numbers. docs/errors.md has a section per code; native-codes.ts maps the addon's.

import { pid } from 'node:process';

import { formatAddress, formatBytes, formatCount, formatList, formatNumber, printable } from './format.js';
import type { CatalogueEntry, ErrorCode, ErrorDetails, RemoteRefusal } from './details.js';
import {
  aftermath, apiVersion, callResult, cannotGrow, capitalize, describe, joined, nextPowerOfTwo, ownerNouns, placesTried,
  shownName, statusText, unavailable,
} from './phrases.js';

/** A kernel touched what has no memory: of all causes the one that the cache's caller can remove. */
const forgottenFence = ' A kernel used memory that is not mapped: if its work goes on behind a `commit` or `release` ' +
  'on a stream of its own, name that stream (`stream`, `fence`).';

/** What the number is that a driver's call works on, where that is no address. */
function handleOf(call: string): 'stream' | 'event' | undefined {
  if (/^cuStream|^cuEventRecord$|Stream$/.test(call)) return 'stream';
  return /^cuEvent|Event$/.test(call) ? 'event' : undefined;
}

/** What to do about a store over a network that refuses. */
const remedies: Readonly<Record<RemoteRefusal, string>> = {
  credentials: 'Give the name and password of one of its users, in `url`, `nodes` or the options of `client`.',
  permission: 'Allow its user `GETRANGE`, `SET`, `EXISTS`, `EXPIRE`, `UNLINK` and `INFO` on keys `kvt:*`.',
  database: 'Name a database that it has, at the end of its address, or raise `databases` in its configuration.',
  protocol: 'Give the address of a Redis or Valkey, with `rediss:` where it speaks TLS and `redis:` where it does not.',
  'is-cluster': 'It is one node of a cluster: give some of its nodes as `nodes`, or a cluster\'s client.',
  'no-cluster': 'It is no cluster: give its address as `url`.',
  full: 'Give it more `maxmemory`, or a `maxmemory-policy` that evicts, such as `allkeys-lru`.',
  other: 'See the store\'s own documentation for this reply.',
};

/** What to do about a directory that cannot be used. */
function remedy({ statusName }: ErrorDetails['KV_STORE_UNAVAILABLE']): string {
  switch (statusName) {
    case 'ENOENT': return 'There is no such directory; check its name.';
    case 'ENOTDIR': return 'A file is in its place; name a directory.';
    case 'EACCES': case 'EPERM': case 'EROFS': return 'Give this process the right to write there, or name another directory.';
    case 'ENOSPC': case 'EDQUOT': return 'Free space on that file system, or name another directory.';
    case 'EMFILE': case 'ENFILE': return 'Raise the limit of open files (`ulimit -n`).';
    default: return 'Check the disk, or name another directory.';
  }
}

export const catalogue: { readonly [C in ErrorCode]: CatalogueEntry<C> } = {
  // Mistakes in the call: nothing has changed.

  KV_UNKNOWN_OPTION: {
    class: 'TypeError',
    recovery: 'fix',
    template: ({ owner, option, suggestion, known = [] }) => joined(
      `Unknown option \`${shownName(option)}\` for ${owner}.`,
      suggestion
        ? `Did you mean \`${suggestion}\`?`
        : known.length > 0 ? `It takes ${formatList(known.map((name) => `\`${name}\``), 'and')}.` : '',
    ),
  },
  KV_INVALID_OPTION: {
    class: ({ reason }) => (reason === 'type' ? 'TypeError' : 'RangeError'),
    recovery: 'fix',
    template: ({ option, expected, received, isReturned, hint }) => {
      const got = isReturned ? `; it returned ${describe(received)}`
        : received === undefined ? '; it is missing' : `, got ${describe(received)}`;
      return joined(`\`${option}\` must be ${expected}${got}.`, hint);
    },
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
      '`maxTokens`: addresses take no memory.',
  },
  KV_COPY_OUT_OF_RANGE: {
    class: 'RangeError',
    recovery: 'fix',
    template: ({ call, address, bytes }) =>
      `Cannot ${call} ${formatBytes(bytes)} at ${formatAddress(address)}: not all of it is mapped. ` +
      'Use only tokens that `prepare` has mapped.',
  },

  // State: an object was used after its end, or in the wrong order.

  KV_CLOSED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, owner }) =>
      `Cannot ${operation}: the ${ownerNouns[owner]} was closed. `
        + (owner === 'Driver' ? 'Open one with `Driver.open`.' : `Create a new ${owner}.`),
  },
  KV_SLOT_RELEASED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ slot, generation, currentGeneration }) =>
      `This handle to slot ${slot} is stale (generation ${generation}, now ${currentGeneration}): it was released, and ` +
      'the slot may belong to another request. Do not use a sequence after `release()`.',
  },
  KV_SLOT_BUSY: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ slot, operation, holder }) => holder === 'the quarantine'
      ? `Cannot ${operation} slot ${slot}: the driver refused to undo a failed change there, and it is out of service until the ` +
        'cache closes. Release its sequence and compute it again in another slot.'
      : `Cannot ${operation} slot ${slot}: ${holder} still uses it. Commit or discard that batch first.`,
  },
  KV_ROW_SHARED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ call, slot, fromToken, tokens }) =>
      `Cannot ${call} ${formatCount('token', tokens)} from token ${formatNumber(fromToken)} on of slot ${slot}: its sequence shares some of ` +
      'them, or none holds the slot. Write only past the sequence\'s length, in a prepared batch.',
  },
  KV_WINDOW_PASSED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ slot, length, tokens, nearestTokens, rollbackTokens }) =>
      `Cannot truncate slot ${slot} from ${formatCount('token', length)} to ${formatNumber(tokens)}: layers that see a part of the ` +
      `text alone have let go of tokens that they would see there. Truncate to ${formatNumber(nearestTokens)} or more, open the cache ` +
      `with \`rollbackTokens\` above ${formatNumber(rollbackTokens)}, or release the sequence and compute it again.`,
  },
  KV_WORK_QUEUED: {
    class: 'KvStateError',
    recovery: 'retry',
    template: ({ slot, operation, step }) =>
      `Cannot ${operation} slot ${slot} yet: a row there must be copied or unmapped, and the engine's step ${formatNumber(step)} may ` +
      `still use it. Call \`cache.completeStep(${step})\` once that step is over, then try again.`,
  },
  KV_BATCH_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({
      operation, problem, hint = 'Use a batch in the order `add`, `prepare`, then `commit` or `discard`.',
    }) =>
      `Cannot ${operation} this batch: it ${problem}. ${hint}`,
  },
  KV_VIEW_TRANSFERRED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ slot, buffers }) =>
      `${formatCount('buffer', buffers)} of the views of slot ${slot} cannot be detached: transferred, or marked as untransferable. ` +
      'Once the sequence is released they show zeros. Transfer a copy (`view.slice()`) instead.',
  },
  KV_POLICY_REENTRY: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, policy }) =>
      `Cannot ${operation} while the policy \`${policy}\` decides. Decide from the policy's arguments, and do this after the cache's ` +
      'call has returned.',
  },
  KV_SELECTION_LOST: {
    class: 'KvStateError',
    recovery: 'retry',
    template: ({ reason }) =>
      `The selected tokens of a stored text could not be loaded: its tiers answer \`${reason}\`. Release the sequence, and acquire another without ` +
      '`selected`, which computes the tokens that are not on the device; schedulers do that by themselves.',
  },
  KV_SEQUENCE_LOSSY: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation }) =>
      `Cannot ${operation}: the sequence holds selected tokens of its text alone (\`isLossy\`), so its results are not exact. ` +
      'Acquire a sequence without `selected` for that.',
  },
  KV_PREFIX_IN_USE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ sequences }) =>
      `Cannot reset the prefix cache: ${formatCount('sequence', sequences)} ${sequences === 1 ? 'uses' : 'use'} it. ` +
      `Release ${sequences === 1 ? 'it' : 'them'} first, or pass \`preempt: true\` to have ${sequences === 1 ? 'it' : 'them'} released.`,
  },
  KV_DRIVER_IN_USE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ owner, users }) => {
      if (owner === 'KvCache') {
        return `Cannot close the cache: ${users === 1 ? 'a pass' : `${formatNumber(users)} passes`} of an engine may still write to it. ` +
          "Await the scheduler's `close()`; the engine must settle its answer, with an error if need be.";
      }
      const counted = owner === 'PagePool'
        ? formatCount('cache', users)
        : `${formatCount('user', users)} (page pools, kernel sets, device memory)`;
      return `Cannot close the ${ownerNouns[owner]}: ${counted} still ${users === 1 ? 'uses' : 'use'} it. ` +
        `Close ${users === 1 ? 'it' : 'them'} first.`;
    },
  },

  // Capacity: expected at run time; nothing has changed.

  KV_NO_FREE_SLOT: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ slots, retiringSlots, leasedSlots }) => leasedSlots !== undefined
      ? `All ${formatCount('side slot', slots)} are in use, ${formatNumber(leasedSlots)} of them by hand-overs of released sequences. Close ` +
        'hand-overs that were read, or raise `handOverSlots`.'
      : (slots === 1 ? 'The only slot is in use' : `All ${formatCount('slot', slots)} are in use`) +
      (retiringSlots === 0
        ? '. '
        : `, ${slots === 1 ? 'released' : `${formatNumber(retiringSlots)} of them released`} and behind a fence. `) +
      'Release a sequence, await `cache.slotFree()`, or raise `slots`.',
  },
  KV_OUT_OF_PAGES: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({
      needRows, needPages, havePages, budgetBytes, pageBytes, slots, sideTensor,
    }) => sideTensor !== undefined
      ? `The side tensor \`${sideTensor}\` cannot grow: ${formatCount('more page', needPages)} ${needPages === 1 ? 'is' : 'are'} needed ` +
        `(${formatBytes(needPages * pageBytes)}), and sequences, hand-overs and pinned text leave ${formatNumber(havePages)}. ` +
        `Release sequences, close hand-overs that were read, or raise \`sideBudgetBytes\` (now ${formatBytes(budgetBytes)}).`
      : `${cannotGrow(slots)}: ${formatCount('more page', needPages)} ${needPages === 1 ? 'is' : 'are'} needed ` +
      `(${formatCount('row', needRows)}, ${formatBytes(needPages * pageBytes)}); ${formatNumber(havePages)} of ` +
      `${formatNumber(Math.floor(budgetBytes / pageBytes))} are free. Release sequences, or raise \`memoryBudgetBytes\` ` +
      `(now ${formatBytes(budgetBytes)}).`,
  },
  KV_OUT_OF_DEVICE_MEMORY: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ pageBytes, createdPages, budgetPages, freeBytes, headroomBytes, memoryBytes }) => {
      const refused = `The device refused page ${formatNumber(createdPages + 1)} of ${formatNumber(budgetPages)} ` +
        `(${formatBytes(pageBytes)})${freeBytes === undefined ? '' : `: ${formatBytes(freeBytes)} is free`}` +
        (headroomBytes ? `, of which \`headroomBytes\` keeps ${formatBytes(headroomBytes)}` : '');
      if (memoryBytes !== undefined) {
        return `The device refused ${formatBytes(memoryBytes)} of plain memory${freeBytes === undefined ? '' : `: ${formatBytes(freeBytes)} is free`}. ` +
          'Free some, or lower a cache\'s `memoryBudgetBytes`.';
      }
      return `${refused}, although the ` +
        `budget allows ${formatCount('more page', Math.max(0, budgetPages - createdPages))}. Another process or the model ` +
        'uses this memory; ' +
        (createdPages > 0
          ? `lower \`memoryBudgetBytes\` to about ${formatBytes(createdPages * pageBytes)}.`
          : 'free some of it.');
    },
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
      const [problem, remedy] = limitBytes === undefined
        ? ['the driver refused it', ', or raise the limit of this process (`ulimit -v`)']
        : [`the limit is ${formatBytes(limitBytes)}`, ''];
      return `Cannot reserve ${formatBytes(bytes)} of addresses${shape}: ${problem}. Lower \`slots\` or \`maxTokens\`${remedy}.`;
    },
  },
  KV_OUT_OF_MAPPINGS: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ neededMappings, limitMappings, otherMappings, isKernelLimit, isForView }) => {
      const needed = formatCount('kernel mapping', neededMappings);
      const limit = formatNumber(limitMappings);
      if (isForView) {
        return `With another view this process needs ${needed}; views keep it to ${limit}, three quarters of what \`vm.max_map_count\` ` +
          `allows. Release sequences, use larger \`pageBytes\`, or run \`sysctl -w vm.max_map_count=${nextPowerOfTwo(2 * neededMappings)}\`.`;
      }
      if (otherMappings === undefined) {
        return `The host driver needs ${needed}; its \`mappingLimit\` is ${limit}. Release sequences, use larger \`pageBytes\`, or ` +
          'open the driver with a larger `mappingLimit`.';
      }
      const together = neededMappings + otherMappings;
      const sum =
        otherMappings === 0 ? '' : ` beside ${formatNumber(otherMappings)} of this process's other host drivers, ` +
        `${formatNumber(together)} together`;
      const remedy = 'Release sequences, use larger `pageBytes`, or run ' +
        `\`sysctl -w vm.max_map_count=${nextPowerOfTwo(2 * Math.max(together, isKernelLimit ? limitMappings : 0))}\` and open the driver again.`;
      return isKernelLimit
        ? `The kernel refused a mapping: the host driver has ${needed}${sum}, and the rest of the process has more than what is left ` +
          `of ${limit} (\`vm.max_map_count\`). ${remedy}`
        : `The host driver needs ${needed}${sum}; host drivers keep to ${limit} in one process. ${remedy}`;
    },
  },
  KV_TIMEOUT: {
    class: 'KvCapacityError',
    recovery: 'retry',
    template: ({ timeoutMs, waitedFor, hint = 'Raise `timeoutMs`.', pendingRows }) =>
      `Waited ${formatNumber(timeoutMs, 1)} ms for ${waitedFor}` +
      (pendingRows === undefined ? '' : `; ${formatCount('row', pendingRows)} still to come`) +
      `. ${hint}`,
  },

  // Requests for tokens: how one ends without an answer in a scheduler, and what a server says to its clients.

  KV_QUEUE_FULL: {
    class: 'KvCapacityError',
    recovery: 'retry',
    template: ({ waitingRequests, maxWaiting }) =>
      `The queue is full: ${formatCount('request', waitingRequests)} ${waitingRequests === 1 ? 'waits' : 'wait'}, and ` +
      `\`maxWaiting\` is ${formatNumber(maxWaiting)}. Await \`scheduler.queueFree()\`, or turn the client away.`,
  },
  KV_DEADLINE_EXCEEDED: {
    class: 'KvCapacityError',
    recovery: 'retry',
    template: ({ deadlineMs, generatedTokens, maxNewTokens }) =>
      `The request was not done in ${formatNumber(deadlineMs, 1)} ms: ${formatNumber(generatedTokens)} of at most ` +
      `${formatCount('token', maxNewTokens)} were generated. Raise \`deadlineMs\`, or send fewer requests at once.`,
  },
  KV_ENGINE_FAILED: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ call, sequences, problem }) =>
      `The engine's \`${call}\` of ${formatCount('sequence', sequences)} failed: ${problem}. The tokens of this pass do not count; see ` +
      '`cause` if there is one.',
  },
  KV_ENGINE_STALLED: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ call, sequences, timeoutMs }) =>
      `The engine's \`${call}\` of ${formatCount('sequence', sequences)} has not answered in ${formatNumber(timeoutMs, 1)} ms ` +
      '(`passTimeoutMs`). Until it does, the slots of the pass stay out of use and its requests end with this error. Make the engine ' +
      'answer, with an error if need be, or restart the process.',
  },
  KV_CALLBACK_FAILED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ option, operation }) => `\`${option}\` threw an error instead of ${operation}. See \`cause\`.`,
  },
  KV_STREAM_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, problem }) =>
      `Cannot ${operation} this stream: it ${problem}. Await \`stream.result\` for the whole answer, or read its tokens with one ` +
      '`for await`.',
  },
  KV_REQUEST_INVALID: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ problem, hint }) => joined(`The request was refused: ${problem}.`, hint),
  },
  KV_SERVER_UNREACHABLE: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ url, problem }) =>
      `The server at ${url} cannot be watched: ${problem}. Start it with \`vkv serve\`, or give the address that it prints.`,
  },
  KV_NOT_SUPPORTED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ option, problem, hint }) => joined(`\`${option}\` is not supported: ${problem}.`, hint),
  },

  // Drivers: the machine refused a call.

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

  // What is cached beside K and V.

  KV_SIDE_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, sideTensor, problem, hint }) =>
      `Cannot ${operation} the side tensor \`${sideTensor}\`: ${problem}. ${hint}`,
  },
  KV_ITEM_TOO_LARGE: {
    class: 'RangeError',
    recovery: 'fix',
    template: ({ kind, tokens, bytes, budgetBytes }) =>
      `The encoder cache cannot hold an item of ${formatCount('token', tokens)} of kind '${printable(kind)}': that is ${formatBytes(bytes)}, ` +
      `and its whole budget is ${formatBytes(budgetBytes)}. Raise \`budgetBytes\`, or leave out \`tokens\` to have it computed but not cached.`,
  },
  KV_HOLD_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, problem }) =>
      `Cannot ${operation} an encoder item: its hold ${problem}. Acquire the item from this cache, and release the hold after its last use.`,
  },
  KV_ENCODER_FULL: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ kind, neededBytes, heldBytes, budgetBytes, waiting }) =>
      `The encoder cache has no room for ${neededBytes === undefined ? 'an item' : formatBytes(neededBytes)} of kind '${printable(kind)}': ` +
      `${formatBytes(heldBytes)} of ${formatBytes(budgetBytes)} is held${waiting === 0 ? '' : `, and ${formatNumber(waiting)} ` +
      `${waiting === 1 ? 'waits' : 'wait'} for room`}. ` +
      'Release holds, raise `budgetBytes`, or wait (`whenFull: \'wait\'`).',
  },

  // Stores below the device: on disk, and over a network.

  KV_STORE_UNAVAILABLE: {
    class: 'KvError',
    recovery: 'fix',
    template: (
      details,
    ) => `Cannot open a disk store at ${printable(details.path)}: \`${details.call}\` returned ${statusText(details)}. ${remedy(details)}`,
  },
  KV_STORE_LOCKED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ path, process }) =>
      `The disk store at ${printable(path)} is open ${process === pid ? 'in this process' : process > 0 ? `in process ${process}` : 'elsewhere'}. ` +
      'Close it there, or give each process a directory or a namespace of its own.',
  },
  KV_STORE_FOREIGN: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ path }) =>
      `${printable(path)} is no part of a disk store, or damaged. Nothing was changed; name another directory, or move it away.`,
  },
  KV_STORE_VERSION: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ path, version, latestVersion }) => version < latestVersion
      ? `${printable(path)} was written by an earlier version of this package (format ${version}; this one has ` +
        `${latestVersion}). Nothing was changed: delete the folder, whose text can be computed again, ` +
        'or name another directory.'
      : `${printable(path)} was written by a later version of this package (format ${version}; this one has ` +
        `${latestVersion}). Nothing was changed; update the package, or name another directory.`,
  },
  KV_STORE_FAILED: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ path, call, ...status }) =>
      `The disk refused \`${call}\` for the store at ${printable(path)}${status.status ? `: ${statusText({ call, ...status })}` : ''}. ` +
      'Blocks that were not yet safe on disk are dropped; store them again, and check the disk if this repeats.',
  },
  KV_TIER_UNREACHABLE: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ tier, address, problem }) =>
      `The tier \`${printable(tier)}\` cannot reach its store at ${printable(address)}: ${printable(problem)}. Start the store, or correct its ` +
      'address.',
  },
  KV_TIER_REFUSED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ tier, address, reason, reply }) =>
      joined(
        `The store of the tier \`${printable(tier)}\` at ${printable(address)} refused: '${printable(reply.replace(/\.$/, ''))}'.`,
        remedies[reason]),
  },
  KV_TIER_DAMAGED: {
    class: 'KvError',
    recovery: 'none',
    template: ({ tier, key, problem }) =>
      `A block of the tier \`${printable(tier)}\` is damaged: the value of \`${printable(key)}\` ${problem}. It counts as absent and ` +
      'will be computed again.',
  },
  KV_TIER_STALLED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ tiers, calls, timeoutMs }) =>
      `Closing waits for ${formatCount('call', calls)} of the ${tiers.length === 1 ? 'tier' : 'tiers'} ${formatList(tiers.map((name) => `\`${printable(name)}\``), 'and')}, which ` +
      `answered nothing for ${formatNumber(timeoutMs)} ms. Text that was about to be stored may be missing there. Have \`close\` of the tier end its running calls, or raise \`prefixCache.tierCloseTimeoutMs\`.`,
  },

  // Addon
  KV_VIEW_FORBIDDEN: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ status }) =>
      `The program that embeds Node.js (for example Electron) allows no ArrayBuffer over native memory (Node-API status ${status}), so ` +
      '`view` cannot return one. Open the cache in a process of plain Node.js, or pass `address(tensor)` to native code.',
  },
  KV_ADDON_NOT_FOUND: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ platform, nodeVersion, tried }) => platform.startsWith('linux-')
      ? `The native addon could not be loaded on ${platform}, Node ${nodeVersion}: ${placesTried(tried)}. Prebuilt ones are for ` +
        'linux-x64 and linux-arm64 with glibc 2.28 or later. Build it from source with `npm rebuild virtual-kv`, in a clone with ' +
        '`npm run build:native` (needs a C++20 compiler, make and python3).'
      : `There is no native addon for ${platform} (Node ${nodeVersion}): caches, drivers, schedulers and replays run on Linux only, ` +
        'prebuilt for linux-x64 and linux-arm64. Planning (`vkv plan`), layouts, block keys and reading traces work without it.',
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
    template: ({ source, line, problem, isSkippable }) =>
      `${source}, line ${formatNumber(line)}: ${problem}. ` + (isSkippable
        ? 'Correct the line, or pass `--skip-invalid`.'
        : 'Correct it: the lines after it cannot be read otherwise.'),
  },
  KV_CONFIG_INVALID: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ source, problem, hint }) => joined(`${source}: ${problem}.`, hint),
  },
  KV_MODEL_INVALID: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ problem }) => problem,
  },
  KV_ONNX_UNAVAILABLE: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ problem }) =>
      `onnxruntime cannot be used: ${printable(problem)}. Install it with \`npm install onnxruntime-node\` (1.20 or later), or give \`library\` the ` +
      'path of a libonnxruntime.so.',
  },
  KV_ONNX_FAILED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ call, problem }) =>
      `onnxruntime refused \`${call}\`: ${printable(problem.replace(/\.$/, ''))}. Check that the file is whole, and that this version of onnxruntime runs it.`,
  },
  KV_OUTPUT_FAILED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ file, problem }) =>
      `${file} was not written: ${problem}. Nothing of it is left; make room, or name another place.`,
  },
  KV_DEPENDENCY_MISSING: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ dependency, purpose }) => {
      const names = dependency.split(' ').map((name) => `\`${name}\``);
      const needed = names.length === 1 ? `the package ${names[0]}, which is`
        : `the packages ${formatList(names, 'and')}, which are`;
      return `${capitalize(purpose)} needs ${needed} not installed. Run \`npm install ${dependency}\`.`;
    },
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
