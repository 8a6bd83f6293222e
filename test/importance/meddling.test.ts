// What callers do while a selection is made: choose tokens that are not there, change arrays meanwhile, and release the sequence in the middle
// of it. Stored text is never forgotten for it, and nothing is read for a sequence that was released.

import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { runInNewContext } from 'node:vm';

import test, { type ExecutionContext } from 'ava';

import { diskTier, firstAndLast, hostTier, isKvError, probeHeads, type LayerQueries, type Sequence, type Tier, type TierMetrics, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { turn } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { difference } from '../helpers/logits.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { sizes, storedText, type StoredText } from './selection-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('meddled selections');
const selection = { ratio: 0.2, selector: firstAndLast() };

const worldOf = (t: ExecutionContext, tier?: Tier): Promise<StoredText> => storedText(t, new Random(seed), tier);

/** Choices of tokens that are not there, or that are none. */
const wrong: Readonly<Record<string, () => Int32Array>> = {
  'below the first token': () => Int32Array.of(-7, 5),
  'far behind the last token': () => Int32Array.of(1_000_000_000),
  'twice the same': () => Int32Array.of(3, 3),
  'that is longer than the text': () => new Int32Array(81).map((_, token) => token),
  'that is a proxy of one': () => new Proxy(Int32Array.of(1, 2), {}),
  'that has the prototype of one alone': () => Object.create(Int32Array.prototype) as Int32Array,
};
const kinds: Readonly<Record<string, (directory: string) => Tier>> = {
  'host memory': () => hostTier({ bytes: 2 ** 24 }),
  'a disk': (directory) => diskTier({ directory, bytes: 2 ** 26, admit: 'all', durability: 'none', chunkBytes: 4096 }),
  'a tier that reads blocks whole': () => new PlainTier('mine'),
};
for (const [kind, tierOf] of Object.entries(kinds)) {
  slow('a disk that is damaged again and again')(`${kind}: no choice of a selector has stored text forgotten, and one of another realm counts`, async (t) => {
    const directory = mkdtempSync(path.join(tmpdir(), 'vkv-misuse-'));
    t.teardown(() => { rmSync(directory, { recursive: true, force: true }); });
    const { world, text } = await worldOf(t, tierOf(directory));
    const { prefixes } = world.cache;
    const [{ blocks }] = prefixes.tiers!.metrics().tiers as [TierMetrics];
    for (const looksAt of ['nothing', 'probe-keys', 'keys'] as const) {
      for (const [what, select] of Object.entries(wrong)) {
        const lossy = await world.lossy(text, { ratio: 0.2, selector: { name: 'wrong', looksAt, select } });
        await world.finish(lossy, text);
        t.true(isKvError(lossy.selection!.failure, 'KV_INVALID_OPTION'), what);
        t.is(prefixes.lookup({ tokens: text }).demotedTokens, 80, what);
        lossy.release();
      }
      const lossy = await world.lossy(text, { ratio: 0.2, selector: { name: 'of another realm', looksAt, select: () => runInNewContext('Int32Array.of(3, 7)') as Int32Array } });
      await world.finish(lossy, text);
      t.is(lossy.selection!.failure, undefined);
      t.is(lossy.selection!.counts.selectedTokens, sizes.layers * 2);
      lossy.release();
    }
    t.like(prefixes.tiers!.metrics().tiers[0], { blocks, damagedBlocks: 0, misses: { absent: 0, corrupt: 0, failed: 0 } });
    await world.close();
  });
}

test('a selection is read by its sequence alone: nothing is read, nor comes, once that is released, by whatever call', async (t) => {
  const tier = new PlainTier('mine');
  const { world, text } = await worldOf(t, tier);
  const { cache } = world;
  const get = tier.get.bind(tier);
  const signals: (AbortSignal | undefined)[] = [];
  let isHeld = false;
  tier.get = (key, payload, signal?: AbortSignal) => {
    signals.push(signal);
    return isHeld ? new Promise(() => { /* never */ }) : get(key, payload);
  };
  const { queryHeads, headDim } = sizes;
  const queries: LayerQueries = { queries: new Float32Array(queryHeads * headDim).fill(0.1), queryHeads };
  const ends: Readonly<Record<string, (sequence: Sequence) => void>> = {
    'release': (sequence) => { sequence.release(); },
    'reset': () => { cache.prefixes.reset({ preempt: true }); },
  };
  for (const [what, end] of Object.entries(ends)) {
    for (const chosen of [selection, { ratio: 0.2 }, { ratio: 1 }]) {
      isHeld = false;
      const begun = await world.lossy(text, chosen);
      await begun.selection!.load(0, queries);
      const reads = signals.length;
      isHeld = true;
      const waiting = await world.lossy(text, chosen);
      const loading = waiting.selection!.load(0, queries);
      await turn();
      t.true(signals.length > reads);
      for (const sequence of [begun, waiting]) if (!sequence.isReleased) end(sequence);
      await t.throwsAsync(loading, { code: 'KV_SLOT_RELEASED' }, what);
      t.true(signals.slice(reads).every((signal) => signal?.aborted), what);
      const after = signals.length;
      for (const { selection: own } of [begun, waiting]) {
        for (const layer of [0, 1]) await t.throwsAsync(own!.load(layer, queries), { code: 'KV_SLOT_RELEASED' }, what);
        t.is(own!.failure, undefined);
      }
      t.is(signals.length, after, what);
      isHeld = false;
      if (what === 'reset') await world.store(text.subarray(0, 80));
    }
  }
  t.like(cache.prefixes.tiers!.metrics().selections, { lostSequences: 0 });
  isHeld = true;
  const last = await world.lossy(text, selection);
  const loading = last.selection!.load(0, queries);
  await world.close({ active: 1 });
  await t.throwsAsync(loading, { code: 'KV_CLOSED' });
  await t.throwsAsync(last.selection!.load(1, queries), { code: 'KV_CLOSED' });
});

test('queries are those that the engine handed over, whatever becomes of their memory while keys are read', async (t) => {
  const { world, text } = await worldOf(t);
  const { queryHeads, headDim } = sizes;
  const bytes = Float32Array.BYTES_PER_ELEMENT * queryHeads * headDim;
  const seen: Float32Array[][] = [];
  const selector: TokenSelector = { ...probeHeads(), select: ({ scores, count }) => {
    seen.push(scores.map((head) => head.slice()));
    return Int32Array.from({ length: count }, (_, token) => token);
  } };
  const later: readonly ((queries: Float32Array) => void)[] = [
    () => { /* nothing */ }, (queries) => { queries.fill(Number.NaN); }, (queries) => { structuredClone(queries.buffer, { transfer: [queries.buffer as ArrayBuffer] }); },
    (queries) => { (queries.buffer as ArrayBuffer & { resize(bytes: number): void }).resize(4); },
  ];
  for (const change of later) {
    const queries = new Float32Array(new (ArrayBuffer as new (bytes: number, options: { maxByteLength: number }) => ArrayBuffer)(bytes, { maxByteLength: 2 * bytes }));
    for (const at of queries.keys()) queries[at] = Math.sin(at);
    const lossy = await world.lossy(text, { ratio: 0.2, selector });
    const loading = lossy.selection!.load(0, { queries, queryHeads });
    change(queries);
    t.is((await loading).tokens, 16);
    t.true(seen.at(-1)!.length === 3 && seen.at(-1)!.every((head) => head.every((score) => score > 0)));
    t.deepEqual(seen.at(-1), seen[0]);
    lossy.release();
  }
  await world.close();
});

slow('a disk that is damaged again and again')(`bytes of a disk that change in the middle of a selection are found, or are of no chosen token (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const directory = folderOf(t);
  const { world, text } = await worldOf(t, diskTier({ directory, bytes: 2 ** 26, admit: 'all', durability: 'none', chunkBytes: 4096 }));
  const { cache, cache: { prefixes } } = world;
  const folder = path.join(directory, readdirSync(directory).find((name) => name.startsWith('kvs-'))!);
  const fileOf = (): string => {
    const names = readdirSync(folder).filter((name) => name.endsWith('.block'));
    return path.join(folder, names[random.integer(names.length)]!);
  };
  const chosen = Int32Array.from({ length: 16 }, (_, token) => 2 * token);
  const expected = world.plain.logits(text, { from: 0, to: 80, choose: () => new Set(chosen) }).at(-1)!;
  let found = 0;
  for (let round = 0; round < 40; round += 1) {
    const file = fileOf();
    const whole = readFileSync(file);
    const spoilt = Buffer.from(whole);
    for (let bytes = 0; bytes < 10; bytes += 1) spoilt[spoilt.length - 1 - random.integer(spoilt.length - 4_096)]! ^= 1 << random.integer(8);
    const selector: TokenSelector = { name: 'spoiling', looksAt: (['nothing', 'probe-keys', 'keys'] as const)[round % 3]!, select: ({ layer }) => {
      if (layer === round % sizes.layers) writeFileSync(file, spoilt);
      return chosen;
    } };
    const lossy = await world.lossy(text, { ratio: 0.2, selector });
    const logits = await world.finish(lossy, text);
    const { failure } = lossy.selection!;
    if (failure === undefined) t.true(difference(logits, expected) < 2e-5, `round ${round}`);
    else t.true(isKvError(failure, 'KV_SELECTION_LOST'));
    found += failure === undefined ? 0 : 1;
    lossy.release();
    await prefixes.tiers!.settled();
    if (failure === undefined) writeFileSync(file, whole);
    cache.prefixes.reset(); // what is damaged goes
    await prefixes.tiers!.settled();
    await world.store(text.subarray(0, 80));
  }
  t.log(`${found} of 40 were found`);
  t.true(found > 0 && found < 40);
  await world.close();
});
