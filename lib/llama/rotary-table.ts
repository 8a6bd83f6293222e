// RotaryTable: cosines and sines of the rotary positions, [position, 2, dim / 2], made once and longer when a text is. Angles
// are computed in double precision. Llama 3's scaling leaves short wavelengths alone, stretches long ones, blends between.

import type { LlamaConfig } from './config.js';
import { sharedFloats } from '../base/typed-arrays.js';

export class RotaryTable {
  readonly #frequencies: readonly number[];
  readonly #dim: number;
  #table = sharedFloats(0);

  constructor(config: LlamaConfig) {
    this.#dim = config.headDim;
    this.#frequencies = rotaryFrequencies(config);
  }

  /** The table for positions below `positions`, at least; the same array until it has to grow. */
  upTo(positions: number): Float32Array {
    const held = this.#table.length / this.#dim;
    if (positions <= held) return this.#table;
    const count = Math.max(positions, 2 * held, 256);
    const larger = sharedFloats(count * this.#dim);
    larger.set(this.#table);
    const half = this.#dim / 2;
    for (let position = held; position < count; position += 1) {
      for (let i = 0; i < half; i += 1) {
        const angle = position * this.#frequencies[i]!;
        larger[position * this.#dim + i] = Math.cos(angle);
        larger[position * this.#dim + half + i] = Math.sin(angle);
      }
    }
    return this.#table = larger;
  }
}

/** Radians per position of each pair, the fastest first. */
export function rotaryFrequencies({ headDim, ropeTheta, ropeScaling: scaling }: LlamaConfig): number[] {
  return Array.from({ length: headDim / 2 }, (_, i) => {
    const frequency = ropeTheta ** (-2 * i / headDim);
    if (scaling.kind === 'none') return frequency;
    if (scaling.kind === 'linear') return frequency / scaling.factor;
    if (scaling.kind === 'factors') return frequency / scaling.factors[i]!;
    const { factor, lowFrequencyFactor: low, highFrequencyFactor: high, originalMaxTokens } = scaling;
    const turns = originalMaxTokens * frequency / (2 * Math.PI); // within the texts it was trained on
    if (turns > high) return frequency;
    if (turns < low) return frequency / factor;
    const share = (turns - low) / (high - low);
    return (1 - share) * frequency / factor + share * frequency;
  });
}
