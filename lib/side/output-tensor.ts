// OutputTensor: what an output of an engine's pass says of itself: its shape and the type of its elements. Engines in
// Node.js differ (`shape` and `dtype`, onnxruntime's `dims` and `type`, typed arrays), so this reads all of them. Never
// reads elements.

import { elementsOf, isArray, lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import { sideDtypes, type SideDtype } from '../base/dtypes.js';

/** A tensor's shape, and its dtype where that is one that a cache can hold. */
export interface OutputTensor {
  readonly kind: 'tensor';
  readonly shape: readonly number[];
  readonly dtype: SideDtype | undefined;
  /** The dtype as the tensor names it, for messages. */
  readonly dtypeName: string;
}

/** What is no tensor. */
export interface OtherOutput {
  readonly kind: 'scalar' | 'list' | 'not-a-tensor';
}

/** More dimensions than any tensor has: a longer list is no shape. */
const mostDimensions = 16;

const shortNames: Readonly<Record<string, SideDtype>> =
  { f32: 'float32', f16: 'float16', bf16: 'bfloat16', i8: 'int8', i32: 'int32' };

const arrayDtypes: Readonly<Record<string, SideDtype>> =
  { Float32Array: 'float32', Float16Array: 'float16', Int8Array: 'int8', Int32Array: 'int32' };

/** Reads each member of `value` once. Throws what its getters throw. */
export function readOutput(value: unknown): OutputTensor | OtherOutput {
  if (typeof value === 'function') return { kind: 'not-a-tensor' };
  if (typeof value !== 'object' || value === null) return { kind: 'scalar' };
  if (isArray(value)) return { kind: 'list' };
  const { shape: named, dims, dtype, type } = value as Readonly<Record<string, unknown>>;
  const array = typedArrayKind(value);
  const length = array === undefined ? undefined : lengthOf(value as Float32Array);
  const given = named ?? dims ?? (length === undefined ? undefined : [length]);
  const shape = shapeOf(given);
  if (shape === undefined) return { kind: 'not-a-tensor' };
  if (length !== undefined && shape.reduce((product, size) => product * size, 1) !== length) {
    return { kind: 'not-a-tensor' };
  }
  return {
    kind: 'tensor', shape,
    ...dtypeOf(dtype ?? type, () => array ?? typedArrayKind((value as { readonly data?: unknown }).data)),
  };
}

/** Undefined for what is no list of sizes. */
function shapeOf(value: unknown): readonly number[] | undefined {
  const list = elementsOf(value);
  if (list === undefined || list.length > mostDimensions) return undefined;
  const shape = Array.from({ length: list.length }, (_, index) => list.elements[index]);
  return shape.every((size) => Number.isSafeInteger(size) && (size as number) >= 0) ? shape as number[] : undefined;
}

/**
 * By the name that it gives, else by the typed array of its elements, of which a Uint16Array and a Uint8Array say too
 * little.
 */
function dtypeOf(name: unknown, arrayOf: () => string | undefined): Pick<OutputTensor, 'dtype' | 'dtypeName'> {
  if (typeof name === 'string') {
    const lower = name.toLowerCase();
    const dtype =
      sideDtypes.find((one) => one === lower) ?? (Object.hasOwn(shortNames, lower) ? shortNames[lower] : undefined)
      ?? (/^f(?:loat)?8/.test(lower) ? 'float8' : undefined);
    return { dtype, dtypeName: name };
  }
  const array = arrayOf() ?? 'none';
  return { dtype: Object.hasOwn(arrayDtypes, array) ? arrayDtypes[array] : undefined, dtypeName: array };
}
