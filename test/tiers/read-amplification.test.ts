// How much more than the selected tokens a disk tier reads for them, by the count of what the system moved: before and after its blocks are
// reordered by what earlier requests selected.

import { diskTier, type TierTokens } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { digestOf, makeBlock } from '#internal/tiers/contract-store.js';
import { seedOf } from '../helpers/seed.js';
import { inFolder } from '../store/store-world.js';
import { ReorderingWorld } from './reordering-world.js';
import { selectedWeights } from './selected-weights.js';
import { slow } from '../runner/slow.js';

const KiB = 2 ** 10;
const seed = seedOf('read amplification');
const chunkBytes = 4 * KiB;
const layers = 4;
const blockTokens = 512;

interface Model {
  readonly what: string;
  /** Of a token in K or V of a layer. */
  readonly rowBytes: number;
  /** Of a token's probe keys in a layer. */
  readonly probeBytes: number;
  /** Share of a request's selection that no earlier request made likely. */
  readonly strays: number;
}

const models: readonly Model[] = [
  { what: 'rows of 2 KiB, one token in eight of a selection new', rowBytes: 2 * KiB, probeBytes: 768, strays: 1 / 8 },
  { what: 'rows of 1 KiB, one token in twenty-five of a selection new', rowBytes: KiB, probeBytes: 384, strays: 1 / 25 },
];

/** Tokens of a block that a request selects, ascending: mostly its important ones. */
function selectionOf(random: Random, important: readonly number[], count: number, strays: number): Int32Array {
  const selected = new Set<number>();
  const others = Math.floor(strays * count);
  for (const token of important.slice(0, count - others)) selected.add(token);
  while (selected.size < count) selected.add(random.integer(blockTokens));
  return Int32Array.from(selected).sort();
}

for (const { what, rowBytes, probeBytes, strays } of models) {
  slow('reads many blocks')(`once blocks are reordered, selected tokens and probes cost at most 1.2 times their bytes: ${what} (seed ${seed})`, (t) => inFolder(async (directory) => {
    const random = new Random(seed);
    const namespace = digestOf(what);
    const stripeTokenBytes = Array.from({ length: layers }, () => [rowBytes, rowBytes, probeBytes]).flat();
    const tier = diskTier({ directory, bytes: 256 * 2 ** 20, admit: 'all', chunkBytes, durability: 'none' });
    await tier.open({ namespace, stripeTokenBytes, blockTokens, found: () => {}, lost: () => {} });
    const blocks = [1, 2].map((made) => makeBlock({ namespace, stripeTokenBytes }, { seed: made, tokens: blockTokens }));
    for (const { record, payload } of blocks) t.deepEqual(await tier.put(record, payload), { isStored: true });
    // By block, its tokens in an order of importance that only requests show.
    const ranking = blocks.map(() => Array.from({ length: blockTokens }, (_, token) => token)
      .map((token) => [token, random.integer(2 ** 30)] as const).toSorted((a, b) => a[1] - b[1]).map(([token]) => token));

    /** Reads probes and, of each layer, a selection; returns the system's bytes by those that were asked for. */
    const amplification = async (ratio: number): Promise<number> => {
      const before = Number(tier.statistics()['readBytes']);
      let [wanted, told] = [0, 0];
      const read = async (key: string, parts: readonly TierTokens[]): Promise<void> => {
        const bytes = parts.reduce((sum, { stripe, tokens }) => sum + tokens.length * stripeTokenBytes[stripe]!, 0);
        const result = await tier.getTokens!(key, parts, new Uint8Array(bytes));
        t.true(result.isFound);
        wanted += bytes;
        told += result.readBytes;
      };
      const all = Int32Array.from({ length: blockTokens }, (_, token) => token);
      for (const [index, { record }] of blocks.entries()) {
        for (let layer = 0; layer < layers; layer += 1) {
          await read(record.key, [{ stripe: 3 * layer + 2, tokens: all }]);
          const tokens = selectionOf(random, ranking[index]!, Math.max(1, Math.ceil(blockTokens * ratio)), strays);
          await read(record.key, [{ stripe: 3 * layer, tokens }, { stripe: 3 * layer + 1, tokens }]);
        }
      }
      const moved = Number(tier.statistics()['readBytes']) - before;
      t.is(told, moved, 'what reads tell is what the system moved');
      return moved / wanted;
    };

    const ratios = [0.05, 0.1, 0.2, 0.25, 0.5, 1];
    const plain: number[] = [];
    for (const ratio of ratios) plain.push(await amplification(ratio));
    const world = new ReorderingWorld(tier, rowBytes);
    for (const { record } of blocks) world.add(record.key, record.tokens);
    for (let request = 0; request < 12; request += 1) {
      const ratio = ratios[request % ratios.length]!;
      blocks.forEach(({ record }, index) => {
        world.means.note(record.key, selectedWeights(selectionOf(random, ranking[index]!, Math.max(1, Math.ceil(blockTokens * ratio)), strays), blockTokens));
      });
    }
    t.is(await world.run(8), blocks.length);
    t.is(await world.run(8), 0, 'what is in a good order stays');
    const reordered: number[] = [];
    for (const ratio of ratios) reordered.push(await amplification(ratio));
    const shown = (list: readonly number[]): string => list.map((one) => one.toFixed(3)).join(', ');
    t.log(`at ${ratios.join(', ')}: ${shown(plain)} before, ${shown(reordered)} after`);
    for (const [index, ratio] of ratios.entries()) t.true(reordered[index]! <= 1.2, `at ${ratio}: ${reordered[index]!}`);
    t.true(plain[1]! > reordered[1]! + 0.1, 'and not without');
    await tier.close();
  }));
}
