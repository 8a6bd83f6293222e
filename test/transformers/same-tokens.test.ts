// The truth test of virtual-kv/transformers: an unchanged program answers as it does over stock sessions, and each row
// of a padded batch as its prompt alone.
// Slow: it loads transformers.js.

import { seedOf } from '../helpers/seed.js';
import { Random } from '#internal/base/random.js';

import type { DecoderForm } from '../onnx/made-decoder.js';
import {
  answersOf,
  batchOf,
  library,
  lastTokens,
  openWorld,
  transformersTest,
  type Generated,
  type PastValues,
} from './transformers-world.js';

const seed = seedOf('transformers');
const textOf = (random: Random, tokens: number): number[] =>
  Array.from({ length: tokens }, () => 1 + Math.floor(random.next() * 95));
const count = 12;

const forms: Readonly<Record<string, DecoderForm>> = {
  GroupQueryAttention: { heads: 8, kvHeads: 4, dim: 128 },
  'packed, with num_logits_to_keep': { isPacked: true, keepsLogits: true },
  'rotary positions outside': { rotary: 'outside' },
  MatMulNBits: { isQuantized: true },
};

for (const [name, form] of Object.entries(forms)) {
  transformersTest(
    `the same tokens as stock sessions: one, again, a batch, at once, a second turn: ${name} (seed ${seed})`,
    async (t) => {
      const { stock, ours, memory } = await openWorld(t, { form });
      const random = new Random(seed);
      const system = textOf(random, 70);
      const ask = (): number[] => [...system, ...textOf(random, 3)];
      const same = async (prompts: readonly (readonly number[])[], what: string): Promise<void> => {
        t.deepEqual(
          await answersOf(ours, batchOf(prompts), count),
          await answersOf(stock, batchOf(prompts), count),
          what,
        );
      };
      const first = ask();
      await same([first], 'one');
      const { computedTokens } = memory.totals;
      await same([ask()], 'the same system prompt');
      t.true(memory.totals.computedTokens - computedTokens < 20 + count, 'only what is new was computed');
      await same([ask(), ask(), ask(), ask()], 'a batch of four');
      const prompts = [ask(), ask().slice(20), [5, 6], ask()];
      const { passes } = memory.totals;
      const together = await Promise.all(prompts.map((prompt) => answersOf(ours, batchOf([prompt]), count)));
      t.true(memory.totals.passes - passes <= count + 2, 'calls of one turn share a pass');
      t.is(memory.totals.mostRows, 4);
      for (const [index, prompt] of prompts.entries())
        t.deepEqual(together[index], await answersOf(stock, batchOf([prompt]), count), `at once, ${index}`);

      const turns = await Promise.all(
        [stock, ours].map(async (model) => {
          const turn = (await model.generate({
            ...batchOf([first]),
            max_new_tokens: 8,
            do_sample: false,
            return_dict_in_generate: true,
          })) as unknown as Generated;
          t.is(turn.past_key_values.get_seq_length(), first.length + 7);
          const text = [...Array.from(turn.sequences.data, Number), 44, 45];
          const answer = await answersOf(model, { ...batchOf([text]), past_key_values: turn.past_key_values }, count);
          await turn.past_key_values.dispose();
          return answer;
        }),
      );
      t.deepEqual(turns[1], turns[0], 'a second turn');
      memory.caches[0]!.verify();
      t.is(memory.caches[0]!.counts().activeSlots, 0, 'pasts that were disposed hold nothing');
    },
  );
}

transformersTest(
  `each row of a batch answers as its prompt alone: equal, padded left, padded right (seed ${seed})`,
  async (t) => {
    const { stock, ours } = await openWorld(t);
    const random = new Random(seed);
    const prompts = [textOf(random, 60), textOf(random, 41), [5, 6], textOf(random, 60)];
    const alone = await Promise.all(
      prompts.map(async (prompt) => (await answersOf(stock, batchOf([prompt]), count))[0]),
    );
    for (const side of ['left', 'right'] as const)
      t.deepEqual(await answersOf(ours, batchOf(prompts, side), count), alone, side);
    t.deepEqual(await answersOf(ours, batchOf([prompts[0]!, prompts[3]!]), count), [alone[0], alone[3]], 'equal');
  },
);

transformersTest(
  `a forward call has the logits of every token, and of none where there is padding (seed ${seed})`,
  async (t) => {
    const { stock, ours } = await openWorld(t);
    const random = new Random(seed);
    const prompts = [textOf(random, 50), textOf(random, 33)];
    for (const time of ['first', 'found in the cache']) {
      const { logits } = await ours(batchOf(prompts));
      t.deepEqual(logits!.dims, [2, 50, 96]);
      for (const [row, prompt] of prompts.entries()) {
        const { logits: wanted } = await stock(batchOf([prompt]));
        const pads = 50 - prompt.length;
        const got = (logits!.data as Float32Array).subarray(row * 50 * 96, (row + 1) * 50 * 96);
        t.true(got.subarray(0, pads * 96).every((value) => value === 0));
        const worst = (wanted!.data as Float32Array).reduce(
          (most, value, at) => Math.max(most, Math.abs(value - got[pads * 96 + at]!)),
          0,
        );
        t.true(worst < 1e-4, `${time}, row ${row}: ${worst}`);
      }
    }
  },
);

transformersTest(
  `a past is a value: texts that go on from it twice do not see each other, nor is it changed (seed ${seed})`,
  async (t) => {
    const { stock, ours, memory } = await openWorld(t);
    const prompt = textOf(new Random(seed), 45);
    const { past_key_values: past, sequences } = (await ours.generate({
      ...batchOf([prompt]),
      max_new_tokens: 2,
      do_sample: false,
      return_dict_in_generate: true,
    })) as unknown as Generated;
    const text = Array.from(sequences.data, Number);
    const copy = (): PastValues => new (library().DynamicCache)({ ...past });
    const goOn = async (tokens: readonly number[]): Promise<number[][]> =>
      answersOf(ours, { ...batchOf([[...text, ...tokens]]), past_key_values: copy() }, count);
    const tails = [[7], [8, 9], [7]];
    const answers = [...(await Promise.all(tails.slice(0, 2).map(goOn))), await goOn(tails[2]!)];
    for (const [index, tail] of tails.entries())
      t.deepEqual(answers[index], await answersOf(stock, batchOf([[...text, ...tail]]), count), `${index}`);
    memory.caches[0]!.verify();
  },
);

transformersTest(
  `streamers, stopping criteria, sampling by a seed's logits and dictionaries are as before (seed ${seed})`,
  async (t) => {
    const { stock, ours } = await openWorld(t);
    const prompt = textOf(new Random(seed), 30);
    const run = async (model: typeof ours): Promise<unknown> => {
      const streamed: unknown[] = [];
      const { StoppingCriteria } = library();
      class AfterFive extends StoppingCriteria {
        _call(ids: readonly (readonly unknown[])[]): boolean[] {
          return ids.map((row) => row.length >= prompt.length + 5);
        }
      }
      const answer = (await model.generate({
        ...batchOf([prompt]),
        max_new_tokens: 20,
        do_sample: false,
        repetition_penalty: 1.2,
        return_dict_in_generate: true,
        streamer: {
          put: (tokens: unknown) => {
            streamed.push(tokens);
          },
          end: () => {
            streamed.push('end');
          },
        },
        stopping_criteria: new AfterFive(),
      })) as unknown as Generated;
      await answer.past_key_values.dispose();
      return {
        tokens: lastTokens(answer.sequences, 5),
        streamed: JSON.stringify(streamed, (_, value: unknown) => (typeof value === 'bigint' ? Number(value) : value)),
      };
    };
    t.deepEqual(await run(ours), await run(stock));
  },
);
