// What dense kernels compute with: buffers of floats, matrices as models store them, products, norms. Types only; dense-arguments.ts
// reads and checks them.

import type { RowDtype } from '../kernels-options.js';

/**
 * Floats: a Float32Array on the CPU, or the address of memory that the driver's device can use, which nobody can check. On a
 * GPU only addresses are taken.
 */
export type FloatBuffer = Float32Array | bigint;

/** A matrix as models store it: `[outputs, inputs]`, 16-bit floats as their bits, or the address of that. It must not change its length. */
export interface Weight {
  /** Its elements row by row, or the address of them; 16-bit floats as their bits. */
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
  /** `[outputs]`, added to each row. */
  readonly bias?: FloatBuffer | undefined;
  /** `[row, outputs]`. */
  readonly output: FloatBuffer;
  /** `add`: to what `output` holds (a residual). Default `replace`. */
  readonly mode?: 'replace' | 'add' | undefined;
}

/** What a row is normalized with. */
export interface Norm {
  /** `[width]` */
  readonly weight: FloatBuffer;
  /** Elements of a row, 1 or more. */
  readonly width: number;
  /** Added to the mean square before its root is taken, above 0. */
  readonly epsilon: number;
}
