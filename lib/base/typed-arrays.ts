// Typed arrays as they are, not as they say: kind, length and place come from the language's own getters, taken when this module is
// loaded. A prototype or a property that somebody put on an object says nothing here, and arrays of other realms (`vm`) count.
//
// Reading an element of a typed array runs no code of the caller's, so what was checked stays as it is until the next such read.

/** Calls a getter of `prototype` on any value, also on one whose own property hides it. */
function getterOf<T>(prototype: object, key: PropertyKey): (of: unknown) => T {
  const { get } = Object.getOwnPropertyDescriptor(prototype, key)!;
  return Function.prototype.call.bind(get!) as (of: unknown) => T;
}

const prototype = Object.getPrototypeOf(Int32Array.prototype) as object;
const lengthGetter = getterOf<number>(prototype, 'length');
const bufferGetter = getterOf<ArrayBufferLike>(prototype, 'buffer');
const byteOffsetGetter = getterOf<number>(prototype, 'byteOffset');
const byteLengthGetter = getterOf<number>(prototype, 'byteLength');
const viewBufferGetter = getterOf<ArrayBufferLike>(DataView.prototype, 'buffer');
const viewOffsetGetter = getterOf<number>(DataView.prototype, 'byteOffset');
const viewLengthGetter = getterOf<number>(DataView.prototype, 'byteLength');

/** `Int32Array` and the like; undefined for whatever is no typed array. A Buffer is a `Uint8Array`. */
export const typedArrayKind = getterOf<string | undefined>(prototype, Symbol.toStringTag);

/** Elements that it has now: 0 once it is detached, or cut off by its buffer. Throws TypeError for what is no typed array. */
export const lengthOf: (array: Float32Array | Int32Array | Uint32Array | Uint16Array) => number = lengthGetter;

export function isInt32Array(value: unknown): value is Int32Array {
  return typedArrayKind(value) === 'Int32Array';
}

export function isFloat32Array(value: unknown): value is Float32Array {
  return typedArrayKind(value) === 'Float32Array';
}

/** Elements [from, from + length) of floats over the same memory, whatever species the array names. */
export function floatsOf(array: Float32Array, from: number, length: number): Float32Array {
  return new Float32Array(bufferGetter(array), byteOffsetGetter(array) + from * Float32Array.BYTES_PER_ELEMENT, length);
}

/** The bytes of a typed array or a DataView; undefined for anything else, and for one that is detached or cut off by its buffer. */
export function bytesOf(view: unknown): Uint8Array | undefined {
  if (!ArrayBuffer.isView(view)) return undefined;
  const isArray = typedArrayKind(view) !== undefined;
  try {
    return isArray ? new Uint8Array(bufferGetter(view), byteOffsetGetter(view), byteLengthGetter(view))
      : new Uint8Array(viewBufferGetter(view), viewOffsetGetter(view), viewLengthGetter(view));
  } catch {
    return undefined;
  }
}

/** Calls `visit` with each element, read once, in order; its length is read once too. False: it is no array or typed array of numbers. */
export function forElements(value: unknown, visit: (element: unknown, index: number, length: number) => void): boolean {
  const kind = typedArrayKind(value);
  if (kind === undefined && !isArray(value)) return false;
  const array = value as ArrayLike<unknown>;
  const length = kind === undefined ? array.length : lengthGetter(array);
  for (let index = 0; index < length; index += 1) visit(array[index], index, length);
  return true;
}

/** As Array.isArray, which throws for a revoked proxy: that is none. */
export function isArray(value: unknown): value is readonly unknown[] {
  try {
    return Array.isArray(value);
  } catch {
    return false;
  }
}

/** A proxy that answers nothing any more: every look at it throws. */
export function isRevoked(value: unknown): boolean {
  try {
    Array.isArray(value);
    return false;
  } catch {
    return true;
  }
}
