import { readdirSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import {
  catalogue, codeOfNative, createError, isKvError, KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError,
  nativeCodes, nativeReasons, reasonOfNative, type ErrorCode, type ErrorDetails,
} from '#internal/base/errors.js';
import { errorExamples } from '../fixtures/error-examples.js';

const root = path.resolve(__dirname, '..', '..');
const MiB = 2 ** 20;
const codes = Object.keys(catalogue) as ErrorCode[];
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');

/** `kName = 3` lines of one C++ enum. */
function enumValues(source: string, name: string): Record<string, number> {
  const body = new RegExp(`enum class ${name}[^{]*\\{([^}]*)\\}`).exec(source)?.[1] ?? '';
  return Object.fromEntries([...body.matchAll(/^\s*(k\w+)\s*=\s*(\d+)/gm)].map((match) => [match[1]!, Number(match[2])]));
}

function numbersOf(list: Readonly<Record<string, { readonly number: number }>>): Record<string, number> {
  return Object.fromEntries(Object.entries(list).map(([name, { number }]) => [name, number]));
}

/** Section text by code of docs/errors.md. */
function documented(): Map<string, string> {
  const sections = read('docs/errors.md').split(/^### /m).slice(1);
  return new Map(sections.map((section) => [/^`?(\w+)/.exec(section)?.[1] ?? '', section]));
}

test('native/status.h and the catalogue have the same codes', (t) => {
  const { kOk, ...failures } = enumValues(read('native/status.h'), 'Code');
  t.is(kOk, 0);
  t.deepEqual(failures, numbersOf(nativeCodes));
  for (const { number, code } of Object.values(nativeCodes)) {
    t.true(code in catalogue);
    t.is(codeOfNative(number), code);
  }
  t.is(codeOfNative(9999), 'KV_INTERNAL');
});

test('native/driver.h and the catalogue have the same reasons for an unavailable driver', (t) => {
  t.deepEqual(enumValues(read('native/driver.h'), 'Unavailable'), numbersOf(nativeReasons));
  const messages = Object.values(nativeReasons).map(({ number, reason }) => {
    t.is(reasonOfNative(number), reason);
    return createError('KV_DRIVER_UNAVAILABLE', { ...errorExamples.KV_DRIVER_UNAVAILABLE, reason, device: 3 }).message;
  });
  t.is(new Set(messages).size, messages.length);
  t.is(reasonOfNative(9999), 'init-failed');
});

test('every code has a section in docs/errors.md, and every section a code', (t) => {
  t.deepEqual([...documented().keys()].sort(), [...codes].sort());
});

test('every section of docs/errors.md names the class, the recovery, the fields and a message as it is rendered', (t) => {
  const sections = documented();
  for (const code of codes) {
    const section = sections.get(code) ?? '';
    const error = createError(code, errorExamples[code]);
    t.true(section.includes(`> ${error.message}\n`), `${code}: the example should be\n> ${error.message}`);
    t.true(section.includes(`\`${error.recovery}\``), `${code}: recovery ${error.recovery}`);
    t.true(section.includes(`\`${error.constructor.name}\``), `${code}: class ${error.constructor.name}`);
    for (const field of Object.keys(errorExamples[code])) {
      t.true(section.includes(`\`${field}\``), `${code}: \`${field}\``);
    }
  }
});

test('every code is raised by at least one test', (t) => {
  const sources = readdirSync(path.join(root, 'test'), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !/(^errors\.test|error-examples)\.ts$/.test(file))
    .map((file) => read(path.join('test', file)));
  t.deepEqual(codes.filter((code) => !sources.some((source) => source.includes(`'${code}'`))), []);
});

test('every message follows the formula', (t) => {
  for (const code of codes) {
    const { message } = createError(code, errorExamples[code]);
    t.regex(message, /[.?]$/, code);
    t.notRegex(message, /!|please|undefined|NaN|\[object|\d{5,}(?![0-9a-f]*\b)/i, code);
    t.true(message.split(/[.?] (?=[A-Z`])/).length <= 3, `${code}: more than three sentences: ${message}`);
  }
});

test('mistakes in the call are built-in errors, whose class follows the reason', (t) => {
  const details = { owner: 'KvCache', option: 'slots', expected: 'an integer', received: 'x' };
  const type = createError('KV_INVALID_OPTION', { ...details, reason: 'type' });
  t.true(type instanceof TypeError);
  t.is(type.message, "`slots` must be an integer, got 'x'.");
  const range = createError('KV_INVALID_OPTION', { ...details, reason: 'range', received: 0.5 });
  t.true(range instanceof RangeError);
  t.is(range.code, 'KV_INVALID_OPTION');
  t.is(range.recovery, 'fix');
  t.is(range.details.received, 0.5);
});

test('a number that is refused is shown with all of its digits where rounding would make it another', (t) => {
  const shown: readonly (readonly [number, string])[] = [
    [1.000_000_1, '1.0000001'], [1 + 2 ** -52, '1.0000000000000002'], [-1e-300, '-1e-300'], [65_536.000_000_1, '65536.0000001'], [1e300, '1e+300'],
    [0.5, '0.5'], [65_537, '65,537'], [-0, '-0'], [Number.NaN, 'NaN'], [-Infinity, '-Infinity'],
  ];
  for (const [received, text] of shown) {
    t.is(createError('KV_INVALID_OPTION', { owner: 'KvCache', option: 'slots', expected: 'an integer', reason: 'range', received }).message, `\`slots\` must be an integer, got ${text}.`);
  }
});

test('operational failures have the class of the reaction they need', (t) => {
  const of = (code: ErrorCode): Error => createError(code, errorExamples[code]);
  t.true(of('KV_CLOSED') instanceof KvStateError);
  t.true(of('KV_OUT_OF_PAGES') instanceof KvCapacityError);
  t.true(of('KV_DRIVER_LOST') instanceof KvDriverError);
  t.true(of('KV_ABORTED') instanceof KvAbortError);
  t.is(of('KV_ABORTED').name, 'AbortError');
  t.is(of('KV_OUT_OF_PAGES').name, 'KvCapacityError');
  t.true(codes.every((code) => of(code) instanceof KvError || catalogue[code].recovery === 'fix'));
});

test('an error keeps its cause and starts its stack at the caller', (t) => {
  const cause = new Error('below');
  const error = createError('KV_CLOSED', errorExamples.KV_CLOSED, { cause });
  t.is(error.cause, cause);
  t.false('cause' in createError('KV_CLOSED', errorExamples.KV_CLOSED));
  t.true(error.stack?.startsWith(`KvStateError: ${error.message}`));
  t.false(error.stack?.includes('dist/base/errors.js'));
});

test('an error takes one stack, as long as the process wants it', (t) => {
  const { stackTraceLimit } = Error;
  const seen: number[] = [];
  const details = { ...errorExamples.KV_DRIVER_CALL_FAILED };
  Object.defineProperty(details, 'status', { get: () => seen.push(Error.stackTraceLimit) }); // read while it is constructed
  const caller = (depth: number): Error => depth === 0 ? createError('KV_DRIVER_CALL_FAILED', details) : caller(depth - 1);
  Error.stackTraceLimit = 7;
  try {
    const { stack = '' } = caller(20);
    t.is(stack.match(/\n {4}at /g)!.length, 7);
    t.is(seen.at(-1), 0, 'none is taken by its constructor');
    t.is(Error.stackTraceLimit, 7);
    Object.defineProperty(details, 'status', { get: () => { throw new Error('mine'); } });
    t.throws(() => caller(0), { message: 'mine' });
    t.is(Error.stackTraceLimit, 7);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
});

test('only this package makes its errors', (t) => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  const like = { code: 'KV_CLOSED', recovery: 'fix', details: {}, cause: undefined };
  for (const errorClass of [KvError, KvStateError, KvCapacityError, KvDriverError, KvAbortError]) {
    for (const fields of [undefined, null, 1, 'x', {}, like, proxy, Symbol('x')]) {
      t.throws(() => new errorClass('text', fields as never), { instanceOf: TypeError, code: 'KV_INVALID_OPTION' });
    }
  }
});

test('a driver error carries the call, its status and the name of the status', (t) => {
  const error = createError('KV_DRIVER_CALL_FAILED', errorExamples.KV_DRIVER_CALL_FAILED) as unknown as KvDriverError;
  t.like(error, { call: 'cuMemMap', status: 999, statusName: 'CUDA_ERROR_UNKNOWN' });
});

test('a failed call says whether its change was undone', (t) => {
  const of = (call: string): string => createError('KV_DRIVER_CALL_FAILED', { call, status: 999, statusName: 'CUDA_ERROR_UNKNOWN' }).message;
  for (const call of ['cuMemMap', 'mmap', 'cuMemcpyDtoDAsync', 'cuMemsetD8Async', 'cuEventRecord']) t.regex(of(call), /was undone, or its slot/, call);
  for (const call of ['cuLaunchKernel', 'cublasGemmEx']) t.regex(of(call), /launched before it may still run.*discard the batch/, call);
  for (const call of ['cuMemcpyHtoDAsync', 'cuMemcpyDtoHAsync']) t.regex(of(call), /Some of the bytes may have been copied/, call);
});

test('the error of a busy slot says what frees it', (t) => {
  const of = (holder: 'the quarantine' | 'another prepared batch'): string =>
    createError('KV_SLOT_BUSY', { slot: 3, operation: 'change', holder }).message;
  t.regex(of('another prepared batch'), /another prepared batch still uses it\. Commit or discard that batch/);
  t.regex(of('the quarantine'), /out of service until the cache closes\. Release its sequence/);
});

test('isKvError tells errors of this package from others, and one code from another', (t) => {
  const error: unknown = createError('KV_OUT_OF_PAGES', errorExamples.KV_OUT_OF_PAGES);
  t.true(isKvError(error));
  t.false(isKvError(error, 'KV_CLOSED'));
  t.is(isKvError(error, 'KV_OUT_OF_PAGES') ? error.details.needPages : 0, 64);
  t.true(isKvError(createError('KV_UNKNOWN_OPTION', errorExamples.KV_UNKNOWN_OPTION)));
  t.false(isKvError(new Error('other')));
  t.false(isKvError(Object.assign(new Error('other'), { code: 'ENOENT', recovery: 'fix' })));
  t.false(isKvError(undefined));
});

test('a batch that cannot grow names its slots while they are few', (t) => {
  const details = errorExamples.KV_OUT_OF_PAGES;
  const message = (slots: number[]): string => createError('KV_OUT_OF_PAGES', { ...details, slots }).message;
  t.regex(message([]), /^A new sequence cannot start: /);
  t.regex(message([3]), /^Slot 3 cannot grow: /);
  t.regex(message([1, 2, 3]), /^Slots 1, 2 and 3 cannot grow together: /);
  t.regex(message([1, 2, 3, 4, 5]), /^5 slots of the batch cannot grow together: /);
});

test('a message has words of its own for each way in which its details may differ', (t) => {
  const variants: { readonly [C in ErrorCode]?: readonly (readonly [Partial<ErrorDetails[C]>, RegExp])[] } = {
    KV_DEPENDENCY_MISSING: [
      [{ dependency: 'hono' }, /the package `hono`, which is not installed\. Run `npm install hono`/],
      [{ dependency: 'a @b/c' }, /the packages `a` and `@b\/c`, which are not installed\. Run `npm install a @b\/c`/],
    ],
    KV_OUT_OF_DEVICE_MEMORY: [
      [{ memoryBytes: 6 * MiB, freeBytes: 4 * MiB }, /6 MiB of plain memory: 4 MiB is free\. .*lower a cache's `memoryBudgetBytes`/],
      [{ freeBytes: 4 * MiB, headroomBytes: MiB }, /: 4 MiB is free, of which `headroomBytes` keeps 1 MiB, although the budget/],
    ],
    KV_OUT_OF_PAGES: [[{ sideTensor: 'hidden', havePages: 2 }, /side tensor `hidden` .*pinned text leave 2\. .*`sideBudgetBytes`/]],
    KV_OUT_OF_MAPPINGS: [
      [{ neededMappings: 13, limitMappings: 12, otherMappings: undefined }, /needs 13 kernel mappings; its `mappingLimit` is 12/],
    ],
    KV_NO_FREE_SLOT: [[{ slots: 3, leasedSlots: 2 }, /All 3 side slots .* 2 of them by hand-overs .*`handOverSlots`/]],
    KV_ENCODER_FULL: [
      [{ neededBytes: undefined, waiting: 0 }, /room for an item of kind 'image': .* is held\. /], [{ waiting: 1 }, /and 1 waits for room/],
    ],
    KV_CUBLAS_UNAVAILABLE: [[{ missing: 'gemm' }, /lacks `gemm`/], [{ missing: undefined }, /could not be opened/]],
    KV_KERNELS_REFUSED: [
      [{ log: '' }, /\(\d+\)\. Update the NVIDIA driver/],
      [{ statusName: 'CUDA_ERROR_OUT_OF_MEMORY' }, /Load them before the cache fills the device/],
    ],
    KV_DRIVER_MISUSE: [[{ call: 'cuEventRecord', address: 12_345 }, /refused the stream 0x3039: it does not exist/]],
    KV_STORE_VERSION: [
      [{ version: 1, latestVersion: 2 }, /earlier version.*delete the folder/], [{ version: 3, latestVersion: 2 }, /later version.*update the package/],
    ],
  };
  for (const [code, cases] of Object.entries(variants) as [ErrorCode, readonly (readonly [object, RegExp])[]][]) {
    for (const [details, says] of cases) {
      t.regex(createError(code, { ...errorExamples[code], ...details } as never).message, says, code);
    }
  }
});

test('a directory that cannot be used is answered by what helps', (t) => {
  const remedy = (statusName: string): string =>
    createError('KV_STORE_UNAVAILABLE', { path: '/kv', call: 'open', status: 1, statusName }).message;
  for (const name of ['EACCES', 'EPERM', 'EROFS']) t.regex(remedy(name), /right to write/, name);
  for (const name of ['ENOSPC', 'EDQUOT']) t.regex(remedy(name), /Free space/, name);
  t.regex(remedy('ENOENT'), /check its name/);
  t.regex(remedy('ENOTDIR'), /name a directory/);
  t.regex(remedy('EMFILE'), /ulimit -n/);
});

test('a refused thread, and addresses that the system refuses, name the limit of the process', (t) => {
  const { message } = createError('KV_DRIVER_CALL_FAILED', { call: 'pthread_create', status: 11, statusName: 'EAGAIN' });
  t.regex(message, /^`pthread_create` failed: EAGAIN \(11\)\. This process may start no more threads: .*`ulimit -u`/);
  const refused = createError('KV_OUT_OF_ADDRESS_SPACE', { bytes: 2 ** 40, slots: 4, maxTokens: 1024 });
  t.regex(refused.message, /the driver refused it\. Lower .*`ulimit -v`/);
});
