// What a tier drops of texts of several priority levels, whatever it keeps: against what must hold at every call.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { StoredTexts, type StoredBlock } from '#internal/tiers/stored-texts.js';
import { TextReuse } from '#internal/tiers/block-order.js';
import { TierContents } from '#internal/tiers/tier-contents.js';
import type { Tier, TierKeeping } from '#internal/tiers/tier.js';
import { seedOf } from '../helpers/seed.js';

const blockTokens = 16;
const keepings: readonly TierKeeping[] = ['adaptive', 'important'];

/** A full tier of 24 blocks at most, each of which takes its tokens. */
function contentsOf(keeps: TierKeeping, seed: number): { readonly texts: StoredTexts; readonly reuse: TextReuse; readonly contents: TierContents } {
  const texts = new StoredTexts();
  const reuse = new TextReuse(seed);
  const tier = { name: 'made', capacityBytes: 24 * blockTokens, keeps } as unknown as Tier;
  return { texts, reuse, contents: new TierContents(tier, 0, texts, { importantTokens: ({ key }) => key.length % 5, reuse }) };
}

/** The blocks of a text, made where they are new. */
function blocksOf(texts: StoredTexts, text: Int32Array): StoredBlock[] {
  const blocks: StoredBlock[] = [];
  let parent = texts.root('a'.repeat(64));
  for (let at = 0; at < text.length; at += blockTokens) {
    const tokens = text.slice(at, at + blockTokens);
    parent = texts.add(parent, `${parent.key.slice(-60)}/${tokens[0]}`, tokens);
    blocks.push(parent);
  }
  return blocks;
}

for (const keeps of keepings) {
  const seed = seedOf(`level order ${keeps}`);
  test(`a tier that keeps '${keeps}' drops the lowest level first, ends of texts first, and nothing above the level of what comes (seed ${seed})`, (t) => {
    const random = new Random(seed);
    const { texts, reuse, contents } = contentsOf(keeps, seed);
    const [went, refused] = [new Map<number, number>(), { count: 0 }];
    for (let turn = 0; turn < 3_000; turn += 1) {
      const text = new Int32Array(blockTokens * (1 + random.integer(5)));
      for (let at = 0; at < text.length; at += blockTokens) text.fill(random.integer(4), at, at + blockTokens);
      const blocks = blocksOf(texts, text);
      const level = [0, 0, 3, 200][random.integer(4)]!;
      for (const block of blocks) block.pins += 1;
      reuse.note(blocks.at(-1)!, text, { promptTokens: text.length, newTokens: random.integer(text.length), answerTokens: 0 });
      texts.raise(blocks.at(-1)!, level);
      for (const block of blocks) block.uses += 1;
      contents.use(blocks.at(-1)!);
      for (const block of blocks) {
        if (contents.has(block)) continue;
        const read = [...contents.blocks()].filter(() => random.chance(0.1));
        for (const each of read) contents.beginReading(each);
        const before = [...contents.blocks()];
        const evicted = contents.evict(contents.excess(blockTokens), (each) => blocks.includes(each), block.level);
        const free = before.filter((each) => !evicted.includes(each) && !blocks.includes(each) && !read.includes(each));
        const ends = free.filter((each) => !each.children.some((child) => contents.has(child)));
        for (const each of evicted) {
          went.set(each.level, (went.get(each.level) ?? 0) + 1);
          t.true(each.level <= block.level && !read.includes(each), 'a block of a higher level went, or one that is read');
          t.false(each.children.some((child) => contents.has(child)), 'a hole');
          t.true(ends.every((other) => other.level >= each.level), 'a block of a lower level stayed');
        }
        if (contents.takes(block, blockTokens) && contents.excess(blockTokens) === 0) contents.add(block, blockTokens);
        else refused.count += 1;
        for (const each of read) contents.endReading(each);
      }
      if (random.chance(0.03)) for (const block of [...contents.blocks()]) contents.remove(block); // else all becomes text of the highest level
      for (const block of blocks) block.pins -= 1;
      for (const block of blocks.reverse()) texts.prune(block);
    }
    for (const level of [0, 3, 200]) t.true(went.get(level)! > 20, `${went.get(level)} blocks of level ${level} went`);
    t.true(refused.count > 20);
  });
}

test('a block is offered room where the tier has something of no higher level', (t) => {
  for (const keeps of keepings) {
    const { texts, contents } = contentsOf(keeps, 1);
    const blocks = Array.from({ length: 24 }, (_, name) => blocksOf(texts, new Int32Array(blockTokens).fill(name))[0]!);
    for (const block of blocks) {
      texts.raise(block, 9);
      contents.add(block, blockTokens);
    }
    const [low, equal] = [100, 101].map((name) => blocksOf(texts, new Int32Array(blockTokens).fill(name))[0]!);
    texts.raise(equal!, 9);
    for (const block of [low!, equal!]) block.uses = 1_000;
    t.deepEqual([contents.takes(low!, blockTokens), contents.takes(equal!, blockTokens)], [false, true], keeps);
    t.deepEqual([contents.isWorthRoom(low!, blockTokens), contents.isWorthRoom(equal!, blockTokens)], [false, true], keeps);
    contents.remove(blocks[3]!);
    t.true(contents.takes(low!, blockTokens), keeps);
    contents.add(low!, blockTokens);
    t.deepEqual(contents.evict(1, () => false), [low!], keeps);
  }
});
