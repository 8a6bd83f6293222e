// Random rules of a layer's attention, for worlds of some hundred tokens: windows, chunks, soft caps and sinks, or none of them.

import type { Random } from '#internal/base/random.js';
import type { PlainRules } from './plain-attention.js';

export function randomRules(random: Random, queryHeads: number): PlainRules {
  const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
  return {
    ...pick<PlainRules>([
      {}, {}, { windowTokens: pick([1, 2, 5, 16, 31, 32, 33, 64, 100, 2 ** 31 - 1]) },
      { chunkTokens: pick([1, 3, 16, 32, 40, 64, 100, 2 ** 31 - 1]) },
    ]),
    ...random.chance(0.3) ? { softcap: pick([0.5, 2, 50]) } : {},
    ...random.chance(0.3) ? { sinks: Array.from({ length: queryHeads }, () => Math.fround(pick([1, 4, 30]) * (2 * random.next() - 1))) } : {},
  };
}
