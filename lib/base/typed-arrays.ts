// Reads the kind, length and memory of a caller's typed array with the language's own getters, taken when this module
// is loaded: a prototype or a property that was put on the object cannot change the answer. Arrays of other realms
// (`vm`) count. And makes arrays: longer copies, and shared ones.
//
// Reading an element of a typed array runs no code of the caller's, so what was checked holds until the caller runs
// again.

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

const sharedLengthGetter = getterOf<number>(SharedArrayBuffer.prototype, 'byteLength');

/** The class name, `Int32Array` and the like; undefined for anything but a typed array. A Buffer is a `Uint8Array`. */
export const typedArrayKind = getterOf<string | undefined>(prototype, Symbol.toStringTag);

/**
 * The number of elements: 0 once the array is detached, or its buffer has shrunk below it. Throws TypeError for other
 * values.
 */
export const lengthOf: (array: Float32Array | Int32Array | Uint32Array | Uint16Array | Uint8Array) => number =
  lengthGetter;

export function isInt32Array(value: unknown): value is Int32Array {
  return typedArrayKind(value) === 'Int32Array';
}

export function isFloat32Array(value: unknown): value is Float32Array {
  return typedArrayKind(value) === 'Float32Array';
}

/** A Float32Array over elements [from, from + length) of the same memory, whatever species the array names. */
export function floatsOf(array: Float32Array, from: number, length: number): Float32Array {
  return new Float32Array(bufferGetter(array), byteOffsetGetter(array) + from * Float32Array.BYTES_PER_ELEMENT, length);
}

/**
 * The bytes of a typed array or a DataView; undefined for anything else, and once its buffer is detached or has shrunk
 * below it.
 */
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

/** Whether a typed array's memory can neither be detached nor shrink: that of a SharedArrayBuffer. */
export function isShared(array: unknown): boolean {
  try {
    sharedLengthGetter(bufferGetter(array)); // throws for an ArrayBuffer
    return true;
  } catch {
    return false;
  }
}

/** Whether it is a typed array whose buffer was detached (transferred to a worker, say). */
export function isDetached(value: unknown): boolean {
  if (typedArrayKind(value) === undefined) return false;
  try {
    void new Uint8Array(bufferGetter(value)); // throws for a detached buffer
    return false;
  } catch {
    return true;
  }
}

/**
 * Elements of an array or a typed array of numbers, to be read once each, and how many there are; undefined for
 * anything else.
 */
export function elementsOf(
  value: unknown,
): { readonly elements: ArrayLike<unknown>; readonly length: number } | undefined {
  const kind = typedArrayKind(value);
  if (kind === undefined && !isArray(value)) return undefined;
  const elements = value as ArrayLike<unknown>;
  return { elements, length: kind === undefined ? elements.length : lengthGetter(elements) };
}

/** Array.isArray, of elements that are not known. */
export function isArray(value: unknown): value is readonly unknown[] {
  return Array.isArray(value);
}

/** A longer copy: the old elements first, the rest zero or as asked. */
export function enlarged<T extends Int32Array | Uint32Array | Uint8Array | Float64Array>(
  array: T, length: number, fill = 0,
): T {
  const copy = new (array.constructor as new (elements: number) => T)(length);
  copy.set(array);
  if (fill !== 0) copy.fill(fill, array.length);
  return copy;
}

/**
 * New floats, all 0, which commands may use that run later: shared memory can be neither detached nor shrunk under
 * them.
 */
export function sharedFloats(length: number): Float32Array {
  return new Float32Array(new SharedArrayBuffer(Float32Array.BYTES_PER_ELEMENT * length));
}
