// RotaryTable: cosines and sines of the rotary positions, [position, 2, dim / 2], made once and longer when a text is. Angles
// are computed in double precision. Llama 3's scaling leaves short wavelengths alone, stretches long ones, blends between.
// RotaryTables: those of a model, by the layers that need them.

import type { FloatBuffer } from '../index.js';
import type { LlamaConfig } from './config.js';
import { sharedFloats } from '../base/typed-arrays.js';

/** `growth`: of queries that are not rotated but grow with their position: cosines are the factor, sines 0. */
export type RotaryName = 'global' | 'local' | 'growth';

/** Where a pass reads them. */
export type TablesOfPass = Readonly<Partial<Record<RotaryName, FloatBuffer>>>;

/** The tables of a model's layers. */
export class RotaryTables {
  readonly #tables: readonly (readonly [RotaryName, RotaryTable])[];

  constructor(config: LlamaConfig) {
    const { layerAttention = [], headDim, localRopeTheta, queryGrowth } = config;
    const tables: [RotaryName, RotaryTable][] = [['global', new RotaryTable(rotaryFrequencies(config))]];
    if (localRopeTheta !== undefined) {
      const local = { headDim, ropeTheta: localRopeTheta, ropeScaling: { kind: 'none' } } as const;
      tables.push(['local', new RotaryTable(rotaryFrequencies(local))]);
    }
    if (queryGrowth !== undefined && layerAttention.some(({ rope }) => rope === 'none')) {
      const { everyTokens, factor } = queryGrowth;
      const still = new Array<number>(headDim / 2).fill(0);
      tables.push(['growth', new RotaryTable(still, (position) => 1 + factor * Math.log1p(Math.floor((position + 1) / everyTokens)))]);
    }
    this.#tables = tables;
  }

  /** All of them for positions below `positions`, each where `place` puts it. */
  upTo(positions: number, place: (name: RotaryName, table: Float32Array) => FloatBuffer): TablesOfPass {
    const placed: Partial<Record<RotaryName, FloatBuffer>> = {};
    for (const [name, table] of this.#tables) placed[name] = place(name, table.upTo(positions));
    return placed;
  }
}

class RotaryTable {
  readonly #frequencies: readonly number[];
  readonly #factorAt: (position: number) => number;
  readonly #dim: number;
  #table = sharedFloats(0);

  /** `factorAt`: of the cosines and sines of a position. */
  constructor(frequencies: readonly number[], factorAt: (position: number) => number = () => 1) {
    this.#dim = 2 * frequencies.length;
    this.#frequencies = frequencies;
    this.#factorAt = factorAt;
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
      const factor = this.#factorAt(position);
      for (let i = 0; i < half; i += 1) {
        const angle = position * this.#frequencies[i]!;
        larger[position * this.#dim + i] = factor * Math.cos(angle);
        larger[position * this.#dim + half + i] = factor * Math.sin(angle);
      }
    }
    return this.#table = larger;
  }
}

/** Radians per position of each pair, the fastest first. */
export function rotaryFrequencies(
  { headDim, ropeTheta, ropeScaling: scaling }: Pick<LlamaConfig, 'headDim' | 'ropeTheta' | 'ropeScaling'>,
): number[] {
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
