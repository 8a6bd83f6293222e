// Random programs on transformers.js over few slots and pages: calls at the same time, batches padded on either side,
// pasts that are kept, go on, go on twice and are disposed of. Every row answers as its prompt alone over a stock
// session, and nothing is held in the end.
// Slow: it loads transformers.js.

import { Random } from '#internal/base/random.js';

import { seedOf } from '../helpers/seed.js';
import { scaled } from '../runner/tier.js';
import {
  batchOf,
  lastTokens,
  library,
  openWorld,
  transformersTest,
  type Generated,
  type PastValues,
} from './transformers-world.js';

interface Kept {
  readonly text: readonly number[];
  readonly past: PastValues;
}

for (const prefixCache of [undefined, 'off'] as const) {
  const seed = seedOf(`transformers random ${prefixCache}`);
  transformersTest(
    `random programs answer as each prompt alone, prefix cache ${prefixCache ?? 'on'} (seed ${seed})`,
    async (t) => {
      const rowBytes = 4 * 65_536; // of 32 tokens
      const { stock, ours, memory } = await openWorld(t, {
        slots: 4,
        memoryBudgetBytes: 20 * rowBytes,
        pageBytes: 65_536,
        prefillTokensPerStep: 24,
        prefixCache,
      });
      const random = new Random(seed);
      const textOf = (tokens: number): number[] => Array.from({ length: tokens }, () => 1 + random.integer(95));
      const known = [textOf(70), textOf(70)];
      const promptOf = (): number[] => [
        ...known[random.integer(2)]!.slice(0, random.integer(70)),
        ...textOf(1 + random.integer(6)),
      ];
      const kept: Kept[] = [];
      const alone = async (text: readonly number[], count: number): Promise<number[]> =>
        lastTokens(await stock.generate({ ...batchOf([text]), max_new_tokens: count, do_sample: false }), count)[0]!;

      const check = async (texts: readonly (readonly number[])[], past: PastValues | undefined): Promise<void> => {
        const count = 1 + random.integer(8);
        const isKept = texts.length === 1 && random.chance(0.5);
        const side = random.chance(0.5) ? 'left' : 'right';
        const answer = (await ours.generate({
          ...batchOf(texts, side),
          max_new_tokens: count,
          do_sample: false,
          return_dict_in_generate: true,
          ...(past === undefined ? {} : { past_key_values: past }),
        })) as unknown as Generated;
        for (const [row, tokens] of lastTokens(answer.sequences, count).entries()) {
          t.deepEqual(
            tokens,
            await alone(texts[row]!, count),
            `${texts.length} rows, ${side}, row ${row}: ${texts[row]!.join(' ')}`,
          );
        }
        if (isKept) kept.push({ text: Array.from(answer.sequences.data, Number), past: answer.past_key_values });
        else if (random.chance(0.7)) await answer.past_key_values.dispose(); // the others are collected
      };
      const act = (): Promise<void> => {
        if (kept.length > 0 && random.chance(0.4)) {
          const at = random.integer(kept.length);
          const { text, past } = kept[at]!;
          if (random.chance(0.5)) kept.splice(at, 1);
          const own = new (library().DynamicCache)({ ...past });
          return check([[...text, ...textOf(1 + random.integer(4))].slice(0, 120)], own);
        }
        return check(Array.from({ length: random.chance(0.6) ? 1 : 2 + random.integer(2) }, promptOf), undefined);
      };
      for (let round = 0; round < scaled(12, 4); round += 1)
        await Promise.all(Array.from({ length: 1 + random.integer(4) }, act));
      t.log(`${JSON.stringify(memory.totals)}`);
      const [cache] = memory.caches;
      cache!.verify();
      await ours.dispose();
      t.true(cache!.isClosed);
    },
  );
}
