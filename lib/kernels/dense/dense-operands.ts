// What dense kernels compute with: buffers of floats, matrices as models store them, products, norms. Types, and the
// bytes of a matrix; dense-arguments.ts reads and checks them.

import { dtypeBytes } from '../../base/dtypes.js';
import type { RowDtype } from '../../base/dtypes.js';

/**
 * Floats: a Float32Array, or an address, which is not checked, of memory that the driver's device can use. On a GPU it
 * must be an address.
 */
export type FloatBuffer = Float32Array | bigint;

/** Type of a weight's elements. `int8`: blocks of 32 integers with a 16-bit scale, on the CPU. */
export type WeightDtype = RowDtype | 'int8';

/** A matrix as models store it: `[outputs, inputs]`. Its array must not change its length. */
export interface Weight {
  /**
   * Its elements row by row, 16-bit floats as their bits, int8 in blocks of 34 bytes: a float16, then 32 integers (the
   * Q8_0 of GGUF); or their address.
   */
  readonly data: Float32Array | Uint16Array | Uint8Array | bigint;
  /** Type of its elements. */
  readonly dtype: WeightDtype;
  /** Rows of the matrix: elements of an output row, 1 or more. */
  readonly outputs: number;
  /** Columns of the matrix: elements of an input row, 1 or more; of int8 a multiple of 32. */
  readonly inputs: number;
}

/** Integers that share a scale, and their bytes with it. */
export const int8Block = { elements: 32, bytes: 34 } as const;

/** Bytes of a matrix. */
export function weightBytes({ dtype, outputs, inputs }: Omit<Weight, 'data'>): number {
  return outputs * (dtype === 'int8' ? inputs / int8Block.elements * int8Block.bytes : inputs * dtypeBytes(dtype));
}

/** One product of an input: `output[row, o] = Σ input[row, i] · weight[o, i]`. */
export interface Product {
  /** The matrix to multiply with. */
  readonly weight: Weight;
  /** `[outputs]`, added to each row. Default: none. */
  readonly bias?: FloatBuffer | undefined;
  /** `[row, outputs]`. */
  readonly output: FloatBuffer;
  /** `add`: adds to the content of `output` (a residual). Default `replace`. */
  readonly mode?: 'replace' | 'add' | undefined;
}

/** Where the two elements of a pair lie that is rotated: (i, i + dim / 2), or (2 i, 2 i + 1). */
export type HeadPairs = 'halves' | 'neighbours';

/**
 * Elements of a head whose pairs are neighbours, at most; as native: kMostNeighbourDim of kernels/dense/dense_set.h.
 */
export const mostNeighbourDim = 1024;

/** The shape of rows that are rotated. */
export interface RotationShape {
  /** Heads of a row, 1 or more. */
  readonly heads: number;
  /** Elements of a head, even. */
  readonly dim: number;
  /**
   * Where pairs lie before; afterwards they are halves. `neighbours` on the CPU alone, up to 1,024 elements a head.
   * Default `halves`.
   */
  readonly pairs?: HeadPairs | undefined;
}

/** What a gate makes of its input: x · sigmoid(x), or GELU by its tanh formula. */
export type Activation = 'silu' | 'gelu-tanh';

/** How rows are normalized. */
export interface Norm {
  /** `[width]` */
  readonly weight: FloatBuffer;
  /** Elements of a row, 1 or more. */
  readonly width: number;
  /** Added to the mean square before the root; above 0. */
  readonly epsilon: number;
  /** `add`: adds to the content of `output` (a residual). Default `replace`. */
  readonly mode?: 'replace' | 'add' | undefined;
}
