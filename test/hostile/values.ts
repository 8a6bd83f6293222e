// Hostile values: what a caller may pass by mistake or on purpose instead of what is asked for. Each is made anew for its case. Some
// take the value that was meant, and are that in disguise: of another realm, in shared or resizable memory, behind a proxy.

import * as vm from 'node:vm';

import * as kv from 'virtual-kv';

/** What hostile getters and traps throw: it must reach the caller as it is. */
export class OnPurpose extends Error {
  override readonly name = 'OnPurpose';
}

type Make = (meant: unknown) => unknown;

const typed = [
  Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array,
] as const;
type Typed = InstanceType<(typeof typed)[number]>;

class Longer extends Int32Array {
  override get length(): number { return 2 ** 31; }
  static get [Symbol.species](): typeof Int32Array { throw new OnPurpose('species'); }
}

function isTyped(value: unknown): value is Typed {
  return typed.some((constructor) => value instanceof constructor);
}

/** The same elements in other memory; what is no typed array becomes an Int32Array. */
function inBuffer(meant: unknown, buffer: (bytes: number) => ArrayBufferLike): Typed {
  const array = isTyped(meant) ? meant : Int32Array.of(1, 2, 3, 4);
  const other = new (array.constructor as Int32ArrayConstructor)(buffer(array.byteLength) as ArrayBuffer, 0, array.length);
  for (let index = 0; index < array.length; index += 1) other[index] = array[index]!;
  return other;
}

// Newer than the types that the tests are compiled with.
type Resizable = ArrayBuffer & { resize(bytes: number): void };
const resizable = (bytes: number, most: number): Resizable =>
  new (ArrayBuffer as unknown as new (bytes: number, options: object) => Resizable)(bytes, { maxByteLength: most });
const growable = (bytes: number): ArrayBufferLike =>
  new (SharedArrayBuffer as unknown as new (bytes: number, options: object) => SharedArrayBuffer)(bytes, { maxByteLength: 2 * bytes + 16 });

function detached(meant: unknown): Typed {
  const array = inBuffer(meant, (bytes) => new ArrayBuffer(bytes));
  structuredClone(array.buffer, { transfer: [array.buffer as ArrayBuffer] });
  return array;
}

function cutOff(meant: unknown): Typed {
  let buffer: Resizable | undefined;
  const array = inBuffer(meant, (bytes) => (buffer = resizable(bytes, bytes + 16)));
  buffer!.resize(0);
  return array;
}

function tracking(meant: unknown): Typed {
  const array = isTyped(meant) ? meant : Int32Array.of(1);
  const buffer = resizable(array.byteLength, array.byteLength + 64);
  buffer.resize(Math.floor(array.byteLength / 2 / array.BYTES_PER_ELEMENT) * array.BYTES_PER_ELEMENT);
  return new (array.constructor as Int32ArrayConstructor)(buffer);
}

const otherRealm = vm.createContext({});
function ofOtherRealm(meant: unknown): unknown {
  if (isTyped(meant)) {
    const array = vm.runInContext(`new ${meant.constructor.name}(${meant.length})`, otherRealm) as Typed;
    array.set(meant as Int32Array);
    return array;
  }
  if (typeof meant !== 'object' || meant === null) return vm.runInContext('({})', otherRealm);
  const copy = vm.runInContext(Array.isArray(meant) ? '[]' : '({})', otherRealm) as object;
  return Object.assign(copy, meant);
}

const target = (meant: unknown): object => (typeof meant === 'object' && meant !== null ? meant : {});
const thrower = (): never => { throw new OnPurpose('trap'); };

/** Objects that have the prototype of something, and nothing else of it. */
const borrowed: Readonly<Record<string, Make>> = Object.fromEntries([
  ...[...typed, Array, DataView, AbortSignal, Map].map((constructor) => constructor as { readonly name: string; readonly prototype: object }),
  ...[kv.KvCache, kv.PagePool, kv.Driver, kv.Sequence, kv.Batch, kv.Kernels, kv.DeviceMemory, kv.EncoderHold]
    .map((constructor) => constructor as unknown as { readonly name: string; readonly prototype: object }),
].map(({ name, prototype }) => [`prototype of ${name}`, () => Object.defineProperty(Object.create(prototype), 'length', { value: 2 ** 20 })]));

export const hostile: Readonly<Record<string, Make>> = {
  'undefined': () => undefined, 'null': () => null, 'true': () => true, 'empty string': () => '', 'string': () => 'x',
  'long string': () => 'x'.repeat(100_000), 'NaN': () => NaN, '-0': () => -0, '-1': () => -1, '0.5': () => 0.5, '1e300': () => 1e300,
  'Infinity': () => Infinity, '2^31': () => 2 ** 31, '2^32': () => 2 ** 32, '2^53': () => 2 ** 53, '-2^53': () => -(2 ** 53),
  '-1n': () => -1n, '2^64n': () => 2n ** 64n, '2^70n': () => 2n ** 70n, 'symbol': () => Symbol('s'), 'function': () => () => 1,
  'array': () => [], 'array of numbers': () => [1, 2], 'array of null': () => [null], 'sparse array': () => new Array(2 ** 32 - 1),
  'object': () => ({}), 'null prototype': () => Object.create(null) as unknown, 'length only': () => ({ length: 5 }), 'date': () => new Date(0),
  'misspelt': (meant) => ({ ...target(meant), mod: 'add', biass: 1 }),
  'answers as a primitive': () => ({ valueOf: thrower, toString: thrower, [Symbol.toPrimitive]: thrower }),
  ...borrowed,
  ...Object.fromEntries(typed.map((constructor) => [constructor.name, () => new constructor(4)])),
  'BigInt64Array': () => new BigInt64Array(4), 'DataView': () => new DataView(new ArrayBuffer(16)),
  'length of its own': (meant) => Object.defineProperty(inBuffer(meant, (bytes) => new ArrayBuffer(bytes)), 'length', { value: 2 ** 30 }),
  'longer than it is': () => new Longer(2), 'empty typed array': (meant) => inBuffer(isTyped(meant) ? meant.slice(0, 0) : new Int32Array(0), (bytes) => new ArrayBuffer(bytes)),
  'detached': detached, 'cut off': cutOff, 'tracking': tracking,
  'resizable': (meant) => inBuffer(meant, (bytes) => resizable(bytes, bytes + 16)),
  'shared': (meant) => inBuffer(meant, (bytes) => new SharedArrayBuffer(bytes)), 'growable': (meant) => inBuffer(meant, growable),
  'other realm': ofOtherRealm,
  'proxy': (meant) => new Proxy(target(meant), {}),
  'throwing proxy': (meant) => new Proxy(target(meant), { get: thrower, ownKeys: thrower, getPrototypeOf: thrower, has: thrower }),
};
