// Reads of blocks that lie in another order on the disk: texts that part in the middle of one, and requests that select of the same blocks while
// these are reordered again and again.

import { diskTier, type SelectedRows, type Tier, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { dropFromDevice } from '../cache/tiers/device-index.js';
import { randomText } from '../helpers/llama-shapes.js';
import { difference } from '../helpers/logits.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { MiB, SelectionWorld, sizes } from './selection-world.js';
import { deadlineMs } from '../helpers/patient.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('reordered reads');
const disk = (directory: string): Tier => diskTier({ directory, bytes: 64 * MiB, admit: 'all', chunkBytes: 4096, durability: 'none' });

/** Every 16th token. */
const scatteredOf = (tokens: number): Int32Array => Int32Array.from({ length: Math.ceil(tokens / 16) }, (_, index) => 16 * index);
const selection = { ratio: 1 / 16, selector: { name: 'scattered', looksAt: 'nothing', select: ({ tokens }) => scatteredOf(tokens) } satisfies TokenSelector };

slow('reorders again and again')(`two texts that part in the middle of a reordered block are exact, and so is what is selected of each (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const world = new SelectionWorld(t, random, { tiers: [disk(folderOf(t))], blockTokens: 256, reorderAfter: 0 });
  const { cache, cache: { prefixes } } = world;
  const tiers = prefixes.tiers!;
  await tiers.ready();
  const text = Int32Array.from(randomText(random, 400));
  await world.store(text);
  for (let request = 0; request < 4; request += 1) {
    const lossy = await world.lossy(text, selection);
    await world.finish(lossy, text);
    lossy.release();
  }
  t.is(await tiers.reorder(), 1);
  for (const parting of [1, 17, 100, 255, 256, 257]) {
    const other = Int32Array.from([...text.subarray(0, parting), (text[parting]! + 1) % sizes.vocabularyTokens, ...randomText(random, 30)]);
    const lossy = await world.lossy(other, selection);
    t.is(lossy.length, parting);
    const logits = await world.finish(lossy, other);
    const selected = world.plain.logits(other, { from: 0, to: parting, choose: () => new Set(scatteredOf(parting)) }).at(-1)!;
    t.true(difference(logits, selected) < 2e-5, `selected of ${parting} tokens`);
    lossy.release();
    dropFromDevice(cache);
    t.like(await prefixes.promote({ tokens: other, deadlineMs }), { promotedTokens: parting });
    t.like(await prefixes.promote({ tokens: text, deadlineMs }), { cachedTokens: 400, promotedTokens: 400 - parting });
    for (const [each, cachedTokens] of [[other, parting], [text, 399]] as const) {
      const sequence = cache.acquire({ tokens: each });
      t.is(sequence.cachedTokens, cachedTokens);
      t.true(difference(await world.finish(sequence, each), world.plain.logits(each).at(-1)!) < 2e-5, `parted at ${parting}`);
      sequence.release();
    }
    await tiers.settled();
    dropFromDevice(cache);
  }
  await world.close();
});

slow('reorders again and again')(`requests that select of the same blocks while these are reordered again and again get the same bytes (seed ${seed})`, async (t) => {
  const random = new Random(seed + 1);
  const headDim = 64;
  const world = new SelectionWorld(t, random, { tiers: [disk(folderOf(t))], blockTokens: 64, reorderAfter: 0, slots: 12, headDim });
  const tiers = world.cache.prefixes.tiers!;
  await tiers.ready();
  const texts = [0, 1].map(() => Int32Array.from(randomText(random, 200)));
  for (const text of texts) await world.store(text);
  const queries = { queries: new Float32Array(sizes.queryHeads * headDim), queryHeads: sizes.queryHeads };
  const first = new Map<string, SelectedRows>();
  let reordered = 0;
  for (let round = 0; round < 12; round += 1) {
    const shift = 3 * (round % 3); // other tokens are important for a while
    const wandering: TokenSelector = { name: 'wandering', looksAt: 'nothing', select: ({ tokens, count }) => Int32Array.from({ length: count }, (_, at) => Math.min(tokens - count + at, Math.floor(at * tokens / count) + shift)) };
    const reordering = tiers.reorder(); // by what the rounds before noted
    await Promise.all(Array.from({ length: 12 }, async (_, request) => {
      const sequence = await world.lossy(texts[request % 2]!, { ratio: 0.1, selector: wandering });
      for (let layer = 0; layer < sizes.layers; layer += 1) {
        const rows = await sequence.selection!.load(layer, queries);
        const name = `${shift} ${request % 2} ${layer}`;
        if (first.has(name)) t.deepEqual(rows, first.get(name));
        else first.set(name, rows);
      }
      sequence.release();
    }));
    reordered += await reordering;
  }
  t.log(`${reordered} times reordered`);
  t.true(reordered > 3);
  t.like(tiers.metrics(), { selections: { lostSequences: 0, sequences: 144 }, reordering: { refusedBlocks: 0 } });
  await world.close();
});
