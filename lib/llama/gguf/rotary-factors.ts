// The factors by which a GGUF file stretches rotary frequencies: what Llama 3's scaling comes to, one float for each pair of a head.

import type { RopeScaling } from '../config.js';
import { modelError } from '../model-error.js';
import type { GgufFile } from './gguf-file.js';

/** The tensor's name. */
export const rotaryFactors = 'rope_freqs.weight';

/** The scaling that a file's tensor says, of heads of `headDim`; undefined where it has none. Throws KV_MODEL_INVALID. */
export function readRotaryFactors({ file, tensors }: GgufFile, headDim: number): RopeScaling | undefined {
  const tensor = tensors.get(rotaryFactors);
  if (tensor === undefined) return undefined;
  const bytes = Buffer.alloc(tensor.bytes);
  file.read(bytes, tensor.offset, `tensor \`${tensor.name}\``);
  const factors = Array.from({ length: tensor.bytes / 4 }, (_, pair) => bytes.readFloatLE(4 * pair));
  if (tensor.type.dtype !== 'float32' || tensor.shape.join() !== `${headDim / 2}` || !factors.every((factor) => Number.isFinite(factor) && factor > 0)) {
    throw modelError(`${file.path}: tensor \`${tensor.name}\` is ${tensor.type.name} [${tensor.shape.join(', ')}], but must be ${headDim / 2} positive F32.`);
  }
  return { kind: 'factors', factors };
}
