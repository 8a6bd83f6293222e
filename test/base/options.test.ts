import { runInNewContext } from 'node:vm';

import test from 'ava';

import { createError, isKvError, type ErrorCode } from '#internal/base/errors.js';
import { abortSignal, arrayOf, boolean, callable, checkInteger, instanceOf, integer, nested, number, oneOf, optional, readOptions, string, withDefault, type Field } from '#internal/base/options.js';
import { closest } from '#internal/base/phrases.js';

const spec = {
  slots: integer({ min: 1, max: 100 }),
  pageBytes: withDefault(integer({ min: 1, multipleOf: 64, hint: 'Leave it out.' }), 128),
  layout: withDefault(oneOf(['per-layer', 'fused']), 'per-layer'),
  mapper: optional(nested({ ahead: withDefault(integer(), 16) })),
};

function failure(run: () => unknown): { name: string; code: ErrorCode; message: string } {
  try {
    run();
  } catch (error) {
    if (isKvError(error)) return { name: error.name, code: error.code, message: error.message };
    throw error;
  }
  throw new Error('did not throw');
}

const rejects = <T>(field: Field<T>, value: unknown): { name: string; message: string } =>
  failure(() => readOptions('Thing', { it: value }, { it: field }));

test('given values are returned and defaults filled in', (t) => {
  t.deepEqual(readOptions('Thing', { slots: 3 }, spec), {
    slots: 3, pageBytes: 128, layout: 'per-layer', mapper: undefined,
  });
  t.deepEqual(readOptions('Thing', { slots: 3, layout: 'fused', mapper: {} }, spec), {
    slots: 3, pageBytes: 128, layout: 'fused', mapper: { ahead: 16 },
  });
});

test('an unknown name is rejected with the nearest known one', (t) => {
  t.deepEqual(failure(() => readOptions('Thing', { slot: 3 }, spec)), {
    name: 'TypeError', code: 'KV_UNKNOWN_OPTION', message: 'Unknown option `slot` for Thing. Did you mean `slots`?',
  });
  t.is(failure(() => readOptions('Thing', { colour: 1 }, spec)).message, 'Unknown option `colour` for Thing. It takes `slots`, `pageBytes`, `layout` and `mapper`.');
  t.is(
    failure(() => readOptions('Thing', { slots: 1, mapper: { ahed: 1 } }, spec)).message,
    'Unknown option `mapper.ahed` for Thing. Did you mean `mapper.ahead`?',
  );
});

test('an unknown name that comes from outside is shown by its beginning, safe to print', (t) => {
  const { message } = failure(() => readOptions('Thing', { [`\u001b[2J${'slots'.repeat(200_000)}`]: 3 }, spec));
  t.regex(message, /^Unknown option `\\u001b\[2Jslots/);
  t.true(message.length < 250, `${message.length} characters`);
});

test('names of Object.prototype are not options', (t) => {
  t.is(failure(() => readOptions('Thing', { slots: 1, constructor: 1 }, spec)).code, 'KV_UNKNOWN_OPTION');
  const inherited = Object.create({ slots: 1 }) as object;
  t.regex(failure(() => readOptions('Thing', inherited, spec)).message, /^`slots` must be .*; it is missing/);
});

class Configured {
  get slots(): number { return 3; }
}

class Filled {
  slots = 3;
}

test('options of an object are its own: what it inherits is refused, and so is an object of a class without any', (t) => {
  t.is(
    failure(() => readOptions('Thing', new Configured(), spec)).message,
    '`slots` must be a property of the object itself; it is missing. The object inherits it, from its class say; pass `{ slots: object.slots }`.',
  );
  t.regex(failure(() => readOptions('Thing', { slots: 1, mapper: Object.create({ ahead: 2 }) as object }, spec)).message, /^`mapper\.ahead` must be a property/);
  const isOptional = { slots: withDefault(integer(), 1) };
  for (const [wrong, name] of [[new Map([['slots', 1]]), 'a Map'], [new Date(0), 'a Date'], [Promise.resolve({ slots: 1 }), 'a Promise'], [/x/, 'a RegExp']] as const) {
    t.is(failure(() => readOptions('Thing', wrong, isOptional)).message, `\`options\` must be a plain object, got ${name}.`);
    t.is(failure(() => readOptions('Thing', { mapper: wrong, slots: 1 }, spec)).message, `\`mapper\` must be a plain object, got ${name}.`);
  }
  const empty = [{}, Object.create(null), Object.create({}), runInNewContext('({})')] as object[];
  for (const object of empty) t.deepEqual(readOptions('Thing', object, isOptional), { slots: 1 });
  const filled = [new Filled(), Object.assign(Object.create(null) as object, { slots: 3 }), runInNewContext('({ slots: 3 })')] as object[];
  for (const object of filled) t.deepEqual(readOptions('Thing', object, isOptional), { slots: 3 });
});

test('what only looks like a typed array is not called one', (t) => {
  const place = { owner: 'world', option: 'name' };
  const got = (received: unknown): string => createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'a Float32Array', received }).message;
  t.regex(got(new Proxy(new Float32Array(2), {})), /must be a Float32Array, got a Proxy\b/);
  t.regex(got(Object.create(Float32Array.prototype)), /got an object with the prototype of a Float32Array/);
  t.regex(got(new Uint16Array(2)), /got a Uint16Array/);
  t.regex(got(new Proxy({}, { get: () => { throw new Error('trap'); } })), /got a Proxy/);
});

test('a detached array is called so', (t) => {
  const array = new Int32Array(4);
  structuredClone(array, { transfer: [array.buffer] });
  t.is(rejects(integer(), array).message, '`it` must be an integer, at least 0, got a detached Int32Array.');
});

test('options must be an object', (t) => {
  for (const wrong of [null, 3, 'slots', [1]]) t.is(failure(() => readOptions('Thing', wrong, spec)).name, 'TypeError');
  const { message } = failure(() => readOptions('Thing', undefined, spec));
  t.is(message, '`slots` must be an integer from 1 to 100; it is missing.');
});

test('integers are safe, in range and a multiple', (t) => {
  const field = integer({ min: 64, max: 4096, multipleOf: 64, hint: 'Leave it out.' });
  t.is(field(128, { owner: 'Thing', option: 'it' }), 128);
  t.like(rejects(field, '64'), {
    name: 'TypeError', message: "`it` must be an integer from 64 to 4,096, got '64'. Leave it out.",
  });
  t.like(rejects(field, 100), { name: 'RangeError', message: '`it` must be a multiple of 64, got 100. Leave it out.' });
  for (const wrong of [0, 63, 4097, 64.5, Number.NaN, Infinity]) t.is(rejects(field, wrong).name, 'RangeError');
  t.is(rejects(integer(), 2 ** 53).message, '`it` must be an integer, at least 0, got 9,007,199,254,740,992.');
  t.is(rejects(integer({ min: 1, max: 1 }), 2).message, '`it` must be 1, got 2.');
});

test('one integer argument is checked by the same rules', (t) => {
  t.notThrows(() => checkInteger('batch', 'tokens', 5, 1, 5));
  t.deepEqual(failure(() => checkInteger('batch', 'tokens', 6, 1, 5)), {
    name: 'RangeError', code: 'KV_INVALID_OPTION', message: '`tokens` must be an integer from 1 to 5, got 6.',
  });
});

test('a misspelt choice is refused with the nearest one', (t) => {
  const { message, name } = rejects(oneOf(['per-layer', 'sliced', 'fused']), 'per-Layer');
  t.is(name, 'RangeError');
  t.is(message, "`it` must be 'per-layer', 'sliced' or 'fused', got 'per-Layer'. Did you mean 'per-layer'?");
  t.is(rejects(oneOf(['a', 'b']), 3).name, 'TypeError');
});

class Known {
  readonly #mark = true;
  static isInstance(value: unknown): value is Known {
    return typeof value === 'object' && value !== null && #mark in value && value.#mark;
  }
}

test('a value of the wrong type or range is refused with what it must be', (t) => {
  t.is(rejects(boolean, 1).message, '`it` must be true or false, got 1.');
  t.is(rejects(string, '').name, 'RangeError');
  t.is(rejects(string, 5n).message, '`it` must be a string, got 5n.');
  t.is(rejects(number(0, 1), 1.5).message, '`it` must be a number from 0 to 1, got 1.5.');
  t.is(rejects(number(), '1').name, 'TypeError');
  t.is(rejects(callable(), {}).message, '`it` must be a function, got an object.');
  t.is(rejects(instanceOf(Known), new Set()).message, '`it` must be a Known, got a Set.');
  t.is(rejects(instanceOf(Known), Object.create(Known.prototype)).message, '`it` must be a Known, got a Known.');
  t.is(rejects(abortSignal, null).message, '`it` must be an AbortSignal, got null.');
  t.is(rejects(arrayOf(integer()), [1, -1]).message, '`it[1]` must be an integer, at least 0, got -1.');
  t.is(rejects(arrayOf(integer()), 'x').name, 'TypeError');
});

test('a suggestion is given only for something close', (t) => {
  t.is(closest('maxToken', ['maxTokens', 'slots']), 'maxTokens');
  t.is(closest('MAXTOKENS', ['maxTokens', 'slots']), 'maxTokens');
  t.is(closest('banana', ['maxTokens', 'slots']), undefined);
});
