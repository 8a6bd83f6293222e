// What virtual-kv/transformers does with slots, pages and pasts: calls wait for each other, pasts that are kept stand
// in nobody's way, and what is left behind goes.
// Slow: it loads transformers.js.

import { mkdirSync, writeFileSync } from 'node:fs';
import { Session } from 'node:inspector';
import * as path from 'node:path';

import test from 'ava';

import { diskTier, isKvError } from 'virtual-kv';
import { install } from 'virtual-kv/transformers';

import { Random } from '#internal/base/random.js';

import { PlainTier } from '../cache/tiers/plain-tier.js';
import { replaceProcessClock } from '../helpers/patient.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { seedOf } from '../helpers/seed.js';
import {
  answersOf,
  batchOf,
  installHere,
  library,
  loadModel,
  openWorld,
  transformersTest,
  writeModel,
  type Generated,
  type Model,
  type PastValues,
  type Tensor,
} from './transformers-world.js';

const seed = seedOf('transformers memory');
const count = 10;
const textOf = (random: Random, tokens: number): number[] =>
  Array.from({ length: tokens }, () => 1 + Math.floor(random.next() * 95));
const textsOf = (texts: number, tokens: number): number[][] => {
  const random = new Random(seed);
  return Array.from({ length: texts }, () => textOf(random, tokens));
};
const kept = async (model: Model, prompt: readonly number[]): Promise<Generated> =>
  (await model.generate({
    ...batchOf([prompt]),
    max_new_tokens: 3,
    do_sample: false,
    return_dict_in_generate: true,
  })) as unknown as Generated;

transformersTest(
  `more calls than slots wait for each other, and a batch of more rows is refused (seed ${seed})`,
  async (t) => {
    const { stock, ours, memory } = await openWorld(t, { slots: 2 });
    const prompts = textsOf(5, 40);
    const wanted = await Promise.all(prompts.map((prompt) => answersOf(stock, batchOf([prompt]), count)));
    t.deepEqual(await Promise.all(prompts.map((prompt) => answersOf(ours, batchOf([prompt]), count))), wanted);
    t.is(memory.totals.mostRows, 2);
    await t.throwsAsync(answersOf(ours, batchOf(prompts.slice(0, 3)), count), {
      code: 'KV_NO_FREE_SLOT',
    });
    t.deepEqual(await answersOf(ours, batchOf([prompts[0]!]), count), wanted[0]);
  },
);

transformersTest(`a call that may not wait is refused while others have the slots (seed ${seed})`, async (t) => {
  const { ours } = await openWorld(t, { slots: 1, waitMs: 0 });
  const prompts = textsOf(2, 40);
  const [first, second] = await Promise.allSettled(prompts.map((prompt) => answersOf(ours, batchOf([prompt]), count)));
  t.is(first!.status, 'fulfilled');
  t.like(second, { status: 'rejected', reason: { code: 'KV_NO_FREE_SLOT' } });
});

transformersTest(`a prompt whose cached K is no number is computed anew, and once more cached (seed ${seed})`, async (t) => {
  const { ours, memory } = await openWorld(t);
  const prompt = batchOf(textsOf(1, 60));
  const wanted = await answersOf(ours, prompt, count);
  const [cache] = memory.caches;
  const [tokens] = textsOf(1, 60) as [number[]];
  const sequence = cache!.acquire({ tokens });
  t.true(sequence.length > 40, 'it is cached');
  const { key } = cache!.layer(0);
  (key.view(sequence) as Float32Array)[20 * key.strides.token] = Number.NaN;
  sequence.release();
  t.deepEqual(await answersOf(ours, prompt, count), wanted);
  const { cachedTokens } = memory.totals;
  t.deepEqual(await answersOf(ours, prompt, count), wanted);
  t.true(memory.totals.cachedTokens > cachedTokens + 40);
  t.is(cache!.prefixes.metrics.drops, 1);
});

transformersTest(
  `calls that grow beyond the pages take turns, and one that never fits is refused (seed ${seed})`,
  async (t) => {
    const eightRows = 8 * 4 * 65_536; // of 32 tokens
    const { stock, ours, memory } = await openWorld(t, { memoryBudgetBytes: eightRows, pageBytes: 65_536 });
    const prompts = textsOf(4, 60);
    const tokens = 40; // 100 of each: 16 rows
    const wanted = await Promise.all(prompts.map((prompt) => answersOf(stock, batchOf([prompt]), tokens)));
    t.deepEqual(await Promise.all(prompts.map((prompt) => answersOf(ours, batchOf([prompt]), tokens))), wanted);
    await t.throwsAsync(answersOf(ours, batchOf(textsOf(1, 300)), count), {
      code: 'KV_OUT_OF_PAGES',
    });
    t.deepEqual(await answersOf(ours, batchOf([prompts[1]!]), tokens), wanted[1]);
    memory.caches[0]!.verify();
  },
);

transformersTest(
  `pasts that are kept hold no slot against others, and go on all the same (seed ${seed})`,
  async (t) => {
    const { stock, ours, memory } = await openWorld(t, { slots: 1 });
    const [one, two] = textsOf(2, 50) as [number[], number[]];
    const turns = [await kept(ours, one), await kept(ours, two)];
    t.is(memory.caches[0]!.counts().activeSlots, 1);
    for (const { sequences, past_key_values: past } of turns) {
      const text = [...Array.from(sequences.data, Number), 7];
      t.deepEqual(
        await answersOf(ours, { ...batchOf([text]), past_key_values: past }, count),
        await answersOf(stock, batchOf([text]), count),
      );
      await past.dispose();
    }
    t.is(memory.caches[0]!.counts().activeSlots, 0);
  },
);

transformersTest(
  `two models share pages: calls wait for those of the other, and pasts that are kept give theirs up (seed ${seed})`,
  async (t) => {
    const form = { heads: 8, kvHeads: 4, dim: 128, positions: 512 };
    const folders = [writeModel(t, form), writeModel(t, { ...form, layers: 3 })];
    const load = () => Promise.all(folders.map((folder) => loadModel(t, folder))) as Promise<[Model, Model]>;
    const stock = await load();
    const memory = installHere(t, { memoryBudgetBytes: 64 * 65_536, pageBytes: 65_536 });
    const ours = await load();
    const prompts = textsOf(4, 120); // and 40 each: 20 pages of the first model, 30 of the other
    const answers = (models: readonly Model[]) =>
      Promise.all(models.flatMap((model) => prompts.map((prompt) => answersOf(model, batchOf([prompt]), 40))));
    t.deepEqual(await answers(ours), await answers(stock));

    const [one, other] = textsOf(2, 280) as [number[], number[]]; // 36 pages, 54 of the other model
    const { sequences, past_key_values: past } = await kept(ours[0], one);
    t.deepEqual(await answersOf(ours[1], batchOf([other]), count), await answersOf(stock[1], batchOf([other]), count));
    const text = [...Array.from(sequences.data, Number), 7];
    t.deepEqual(
      await answersOf(ours[0], { ...batchOf([text]), past_key_values: past }, count),
      await answersOf(stock[0], batchOf([text]), count),
    );
    await past.dispose();
    for (const cache of memory.caches) {
      cache.verify();
      t.is(cache.counts().activeSlots, 0);
    }
    await t.throwsAsync(answersOf(ours[1], batchOf(textsOf(1, 400)), 1), { code: 'KV_OUT_OF_PAGES' });
  },
);

/** A token has 96 KiB, a row of the cache 8 tokens and 12 pages. */
const heavy = { form: { layers: 6, heads: 16, kvHeads: 16, dim: 128, positions: 512 }, pageBytes: 65_536 };
const mebibytes = 2 ** 20;

for (const kvHeads of [16, 12]) {
  const rowTokens = kvHeads === 16 ? 'whole tokens' : '10⅔ tokens';
  transformersTest(
    `what stands in a prompt's way is evicted in parts, and not what is cached of the prompt, rows of ${rowTokens} (seed ${seed})`,
    async (t) => {
      const { stock, ours, memory } = await openWorld(t, {
        ...heavy,
        form: { ...heavy.form, heads: kvHeads, kvHeads },
        memoryBudgetBytes: (kvHeads === 16 ? 60 : 50) * mebibytes,
      });
      const [cache] = memory.caches;
      t.is(Number.isInteger(cache!.layout.tokensPerRow), kvHeads === 16);
      const [start, long, other] = textsOf(3, 400) as [number[], number[], number[]];
      const ask = async (model: Model, text: readonly number[]) => answersOf(model, batchOf([text]), 2);
      await ask(ours, start.slice(0, 80));
      const sharing = [1, 2, 3, 4, 5, 6].map((last) => [...long, last, 7]);
      await ask(ours, long);
      await answersOf(ours, batchOf(sharing), 2);
      const prompt = [...start.slice(0, 80), ...other];
      const wanted = await ask(stock, prompt);

      const { cachedTokens } = memory.totals;
      let [unmapped, most] = [cache!.metrics.unmappedRows, 0];
      const first = unmapped;
      let watch = setImmediate(function look() {
        const { unmappedRows } = cache!.metrics;
        most = Math.max(most, unmappedRows - unmapped);
        unmapped = unmappedRows;
        watch = setImmediate(look);
      });
      t.deepEqual(await ask(ours, prompt), wanted);
      clearImmediate(watch);
      t.true(cache!.metrics.unmappedRows - first >= 110, `${cache!.metrics.unmappedRows - first} rows, in all slots`);
      t.true(most <= 7 * 12, `${most} rows at once`); // 11 rows have 8 MiB, and seven slots share them
      t.true(memory.totals.cachedTokens - cachedTokens >= 72, `${memory.totals.cachedTokens - cachedTokens} tokens`);
      cache!.verify();
    },
  );
}

transformersTest(
  `prompts that fill the memory take turns, those of another model too while it makes way for one (seed ${seed})`,
  async (t) => {
    const folder = writeModel(t, heavy.form);
    const stock = await loadModel(t, folder);
    const memory = installHere(t, { memoryBudgetBytes: 48 * mebibytes, pageBytes: heavy.pageBytes });
    const ours = [await loadModel(t, folder), await loadModel(t, folder)];
    const prompts = textsOf(4, 400);
    const ask = (texts: readonly (readonly number[])[]) =>
      Promise.all(texts.map((text, at) => answersOf(ours[at % 2]!, batchOf([text]), 2)));
    const wanted = await Promise.all(prompts.map((prompt) => answersOf(stock, batchOf([prompt]), 2)));
    t.deepEqual(await ask(prompts), wanted);

    const unmapped = () => memory.caches.reduce((sum, { metrics }) => sum + metrics.unmappedRows, 0);
    const before = unmapped();
    t.deepEqual(await ask([prompts[1]!, prompts[0]!]), [wanted[1], wanted[0]]); // cached of the other model each
    t.true(unmapped() - before <= 120, `${unmapped() - before} rows`); // 51 have a prompt: none is mapped in vain

    await ask([prompts[0]!.slice(0, 300)]);
    const { calls } = memory.totals;
    t.deepEqual(await ask(prompts.slice(0, 2)), wanted.slice(0, 2)); // most of the first one is held
    t.is(memory.totals.calls - calls, 4);
    for (const cache of memory.caches) {
      cache.verify();
      t.is(cache.counts().activeSlots, 0);
    }

    const late = ask(prompts.slice(2));
    await new Promise(setImmediate);
    const [error] = await Promise.all([t.throwsAsync(late), memory.close()]);
    t.true(isKvError(error, 'KV_CLOSED') || isKvError(error, 'KV_ABORTED'), String(error));
  },
);

transformersTest(`pasts that nobody disposes of are released when they are collected (seed ${seed})`, async (t) => {
  const { ours, memory } = await openWorld(t);
  for (const prompt of textsOf(3, 20)) await kept(ours, prompt);
  t.is(memory.caches[0]!.counts().activeSlots, 3);
  const inspector = new Session();
  inspector.connect();
  for (let turn = 0; turn < 100 && memory.caches[0]!.counts().activeSlots > 0; turn += 1) {
    inspector.post('HeapProfiler.collectGarbage');
    await new Promise(setImmediate);
  }
  inspector.disconnect();
  t.is(memory.caches[0]!.counts().activeSlots, 0);
});

transformersTest(`tokens of a past that a later mask hides are not seen any more (seed ${seed})`, async (t) => {
  const { stock, ours } = await openWorld(t);
  const { Tensor } = library();
  const random = new Random(seed);
  const text = textOf(random, 40);
  const first = await ours(batchOf([text]));
  const past = Object.fromEntries(
    Object.entries(first)
      .filter(([name]) => name.startsWith('present'))
      .map(([name, tensor]) => [name.replace('present', 'past_key_values'), tensor]),
  );
  const mask = Array.from({ length: 42 }, (_, column) => (column >= 10 && column < 25 ? 0 : 1));
  const long = (numbers: readonly number[]) =>
    new Tensor('int64', BigInt64Array.from(numbers, BigInt), [1, numbers.length]);
  const { logits } = await ours({
    input_ids: long([7, 8]),
    attention_mask: long(mask),
    past_key_values: new (library().DynamicCache)(past),
  });
  const { logits: wanted } = await stock(batchOf([[...text.filter((_, column) => mask[column] === 1), 7, 8]]));
  const got = logits!.data as Float32Array;
  t.is(got.length, 2 * 96);
  t.true(got.every((value, at) => Math.abs(value - (wanted!.data as Float32Array).at(at - got.length)!) < 1e-4));
});

transformersTest(`pasts of other sessions, of other batches and mixed ones are refused (seed ${seed})`, async (t) => {
  const { stock, ours } = await openWorld(t);
  const [prompt] = textsOf(1, 20) as [number[]];
  const foreign = (await kept(stock, prompt)).past_key_values;
  const own = (await kept(ours, prompt)).past_key_values;
  const turn = (past: PastValues, rows = 1) =>
    ours.generate({
      ...batchOf(new Array<number[]>(rows).fill([...prompt, 1, 2, 3, 4])),
      past_key_values: past,
      max_new_tokens: 1,
    });
  const refuse = async (answer: Promise<unknown>, details: object): Promise<void> => {
    t.like(await t.throwsAsync(answer), { code: 'KV_INVALID_OPTION', details });
  };
  await refuse(turn(foreign), {
    option: 'past_key_values.0.key',
    expected: 'empty, or all of them what one call of this model has returned',
  });
  await refuse(turn(own, 2), { option: 'past_key_values', expected: 'of a batch of 2', received: 'one of 1' });
  const mixed = new (library().DynamicCache)({
    ...(own as Record<string, Tensor>),
    'past_key_values.1.key': (await kept(ours, prompt)).past_key_values['past_key_values.1.key']!,
  });
  await refuse(turn(mixed), { option: 'past_key_values.1.key' });
});

transformersTest(`positions that count from 1 are computed as they are said (seed ${seed})`, async (t) => {
  const { stock, ours } = await openWorld(t, { form: { rotary: 'outside', mask: 'causal' }, modelType: 'gemma3_text' });
  const prompts = textsOf(2, 30);
  for (const prompt of prompts)
    t.deepEqual(await answersOf(ours, batchOf([prompt]), count), await answersOf(stock, batchOf([prompt]), count));
});

transformersTest(
  `a model that cannot be rewritten runs as before, with one warning that names the node (seed ${seed})`,
  async (t) => {
    const warnings: Error[] = [];
    const listen = (warning: Error): void => {
      warnings.push(warning);
    };
    process.on('warning', listen);
    t.teardown(() => process.off('warning', listen));
    const folder = writeModel(t, { mask: 'distances' });
    const stock = await loadModel(t, folder);
    const memory = installHere(t);
    const ours = await loadModel(t, folder);
    await loadModel(t, folder);
    await new Promise(setImmediate);
    t.is(memory.caches.length, 0);
    t.is(warnings.length, 1);
    t.like(warnings[0], { code: 'KV_MODEL_INVALID' });
    t.regex(warnings[0]!.message, /^A model runs as before.*"layer_0\.attended" \(GroupQueryAttention\) adds "mask"/);
    const prompts = textsOf(1, 20);
    t.deepEqual(await answersOf(ours, batchOf(prompts), count), await answersOf(stock, batchOf(prompts), count));
  },
);

transformersTest(`after a restart a prompt comes from a disk tier, with the same answer (seed ${seed})`, async (t) => {
  replaceProcessClock(t);
  const directory = folderOf(t);
  const folder = writeModel(t, { heads: 8, kvHeads: 4, dim: 128 });
  const prompt = textsOf(1, 200)[0]!;
  const run = async (): Promise<{ readonly answer: number[][]; readonly cached: number }> => {
    const memory = installHere(t, {
      prefixCache: { tiers: [diskTier({ directory, bytes: 2 ** 26 })], tierBlockTokens: 16 },
    });
    const model = await loadModel(t, folder);
    const answer = await answersOf(model, batchOf([prompt]), count);
    const { cachedTokens: cached } = memory.totals;
    await memory.close();
    return { answer, cached };
  };
  const before = await run();
  const after = await run();
  t.is(before.cached, 0);
  t.true(after.cached >= 0.9 * prompt.length, `${after.cached} of ${prompt.length} tokens`);
  t.deepEqual(after.answer, before.answer);
  const other = writeModel(t, { heads: 8, kvHeads: 4, dim: 128, floats: { scale: 0.2 } });
  const memory = installHere(t, {
    prefixCache: { tiers: [diskTier({ directory, bytes: 2 ** 26 })], tierBlockTokens: 16 },
  });
  await answersOf(await loadModel(t, other), batchOf([prompt]), 1);
  t.is(memory.totals.cachedTokens, 0, 'another model finds nothing of it');
});

transformersTest(
  `what is closed ends its calls, and models that are loaded later run as before (seed ${seed})`,
  async (t) => {
    const { ours, memory } = await openWorld(t);
    const prompts = textsOf(1, 30);
    const answer = answersOf(ours, batchOf(prompts), 200);
    await new Promise(setImmediate);
    const [error] = await Promise.all([t.throwsAsync(answer), memory.close()]);
    t.true(isKvError(error, 'KV_CLOSED') || isKvError(error, 'KV_ABORTED'), String(error));
    await memory.close();
    await t.throwsAsync(answersOf(ours, batchOf(prompts), 1), { code: 'KV_CLOSED' });
    const later = await loadModel(t, writeModel(t, {}));
    const past = (await kept(later, prompts[0]!)).past_key_values;
    t.is(past['past_key_values.0.key']!.location, 'cpu');
  },
);

transformersTest('a model that is still being loaded is closed with the others', async (t) => {
  const tier = new PlainTier('slow');
  const opened = new Promise<() => void>((resolve) => {
    tier.open = () =>
      new Promise<void>((open) => {
        resolve(open);
      });
  });
  const memory = installHere(t, { prefixCache: { tiers: [tier] } });
  const loading = loadModel(t, writeModel(t, {}));
  const open = await opened;
  const closing = memory.close();
  open();
  const [model] = await Promise.all([loading, closing]);
  t.deepEqual(memory.caches, []);
  await t.throwsAsync(answersOf(model, batchOf(textsOf(1, 30)), 1), { code: 'KV_CLOSED' });
});

transformersTest('a prompt of more tokens than a text may have is refused by that, however many they are', async (t) => {
  const { ours } = await openWorld(t, { form: {} });
  for (const tokens of [33_000, 200_000]) {
    const prompt = new Array<number>(tokens).fill(1);
    await t.throwsAsync(async () => ours(batchOf([prompt])), { code: 'KV_LENGTH_OUT_OF_RANGE' });
  }
});

test('a transformers.js older than 4 is refused, since its sessions could not tell which logits it wants', (t) => {
  const from = folderOf(t);
  const folder = path.join(from, 'node_modules', '@huggingface', 'transformers');
  mkdirSync(path.join(folder, 'dist'), { recursive: true });
  writeFileSync(path.join(folder, 'package.json'), '{ "version": "3.8.1", "main": "dist/transformers.cjs" }');
  writeFileSync(path.join(folder, 'dist', 'transformers.cjs'), '');
  t.like(
    t.throws(() => install({ memoryBudgetBytes: 2 ** 24, from })),
    { code: 'KV_DEPENDENCY_MISSING', details: { dependency: '@huggingface/transformers@4' } },
  );
});

test('options that do not exist, values out of range and a missing transformers.js are refused', (t) => {
  const good = { memoryBudgetBytes: 2 ** 24, from: path.sep };
  const refuse = (options: object, code: string, details: object): void => {
    t.like(
      t.throws(() => install(options as never)),
      { code, details },
    );
  };
  refuse(good, 'KV_DEPENDENCY_MISSING', { dependency: '@huggingface/transformers' });
  refuse({ ...good, slot: 3 }, 'KV_UNKNOWN_OPTION', { suggestion: 'slots' });
  refuse({}, 'KV_INVALID_OPTION', { option: 'memoryBudgetBytes' });
  for (const wrong of [
    { slots: 0 },
    { maxTokens: 0 },
    { dtype: 'int8' },
    { threads: -1 },
    { prefillTokensPerStep: 0 },
    { waitMs: -1 },
    { pageBytes: 0 },
    { from: 7 },
  ]) {
    t.throws(() => install({ ...good, ...wrong } as never), { code: 'KV_INVALID_OPTION' }, JSON.stringify(wrong));
  }
});
