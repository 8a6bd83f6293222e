// What dense kernels compute with: buffers of floats, matrices as models store them, products, norms. Types only; dense-arguments.ts
// reads and checks them.

import type { RowDtype } from '../kernels-options.js';

/**
 * Floats: a Float32Array, or an address, which is not checked, of memory that the driver's device can use. On a GPU it must be an
 * address.
 */
export type FloatBuffer = Float32Array | bigint;

/** A matrix as models store it: `[outputs, inputs]`. Its array must not change its length. */
export interface Weight {
  /** Its elements row by row, 16-bit floats as their bits; or their address. */
  readonly data: Float32Array | Uint16Array | bigint;
  /** Type of its elements. */
  readonly dtype: RowDtype;
  /** Rows of the matrix: elements of an output row, 1 or more. */
  readonly outputs: number;
  /** Columns of the matrix: elements of an input row, 1 or more. */
  readonly inputs: number;
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

/** How rows are normalized. */
export interface Norm {
  /** `[width]` */
  readonly weight: FloatBuffer;
  /** Elements of a row, 1 or more. */
  readonly width: number;
  /** Added to the mean square before the root; above 0. */
  readonly epsilon: number;
}
