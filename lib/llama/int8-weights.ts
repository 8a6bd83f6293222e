// Int8 weights, made while a model is loaded: each 32 neighbours of a row become integers with a common 16-bit scale, the largest of them
// ±127. About half the bytes of 16-bit weights, of which decoding reads each once a step. No state.

import { native } from '../device/native.js';
import type { DenseKernels, Weight } from '../index.js';
import { int8Block, weightBytes } from '../kernels/dense/dense-operands.js';
import { modelError } from './model-error.js';

/** Rows that are converted at a time. */
const rowsAtOnce = 64;

/** The same matrix in int8. Throws KV_MODEL_INVALID when it cannot be: rows of no whole blocks, or elements that are no finite numbers. */
export function quantized(name: string, weight: Weight, dense: DenseKernels): Weight {
  const { outputs, inputs } = weight;
  if (inputs % int8Block.elements !== 0) {
    throw modelError(`Tensor \`${name}\` has rows of ${inputs} elements, and int8 weights are made of ${int8Block.elements} at a time. Load the model without \`weights: 'int8'\`.`);
  }
  const made: Omit<Weight, 'data'> = { dtype: 'int8', outputs, inputs };
  const rowBytes = weightBytes({ ...made, outputs: 1 });
  const data = new Uint8Array(new SharedArrayBuffer(rowBytes * outputs)); // commands read it that run later: it must not be detached
  const floats = new Float32Array(rowsAtOnce * inputs);
  for (let from = 0; from < outputs; from += rowsAtOnce) {
    const rows = Math.min(rowsAtOnce, outputs - from);
    dense.gather(weight, Int32Array.from({ length: rows }, (_, row) => from + row), rows, floats);
    if (native().quantizeRows(floats, data.subarray(from * rowBytes, (from + rows) * rowBytes))) continue;
    throw modelError(`Tensor \`${name}\` has elements in rows ${from} to ${from + rows - 1} that are not finite, or too large for int8. Is the download complete?`);
  }
  return { ...made, data };
}
