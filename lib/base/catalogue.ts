// The one list of error codes: class, recovery and message of each. A message is "what failed: the numbers. What to
// do.", at most three sentences, sizes with units, option names in backticks. Nothing parses a message; `details` has
// the numbers. docs/errors.md has a section per code. Files beside this one have those of drivers, stores and other
// parts; native-codes.ts maps the addon's.

import { formatAddress, formatBytes, formatCount, formatList, formatNumber, printable } from './format.js';
import type { CatalogueEntry, ErrorCode } from './details.js';
import { driverCodes } from './driver-codes.js';
import { capitalize, describe, joined, nextPowerOfTwo, ownerNouns, placesTried, cannotGrow } from './phrases.js';
import { servingCodes } from './serving-codes.js';
import { sideCodes } from './side-codes.js';
import { storeCodes } from './store-codes.js';

export const catalogue: { readonly [C in ErrorCode]: CatalogueEntry<C> } = {
  // Mistakes in the call: nothing has changed.

  KV_UNKNOWN_OPTION: {
    class: 'TypeError',
    recovery: 'fix',
    template: ({ owner, option, suggestion, known = [] }) => joined(
      `Unknown option \`${option}\` for ${owner}.`,
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
        `(${formatBytes(needPages * pageBytes)}), and sequences and hand-overs leave ${formatNumber(havePages)}. Release sequences, close ` +
        `hand-overs that were read, or raise \`sideBudgetBytes\` (now ${formatBytes(budgetBytes)}).`
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

  ...servingCodes,
  ...driverCodes,
  ...sideCodes,
  ...storeCodes,

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
