// What a tier that keeps by `adaptive` drops: against what must hold at every call, and beside a tier that keeps what was used last.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { ReuseOrder, TextReuse } from '#internal/tiers/block-order.js';
import { StoredTexts, type StoredBlock } from '#internal/tiers/stored-texts.js';
import { TierContents } from '#internal/tiers/tier-contents.js';
import type { Tier } from '#internal/tiers/tier.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('reuse order');
const blockTokens = 16;

/** The blocks of a text, made where they are new. */
function blocksOf(texts: StoredTexts, text: Int32Array): StoredBlock[] {
  const blocks: StoredBlock[] = [];
  let parent = texts.root('a'.repeat(64));
  for (let at = 0; at + blockTokens <= text.length; at += blockTokens) {
    parent = texts.add(parent, `${parent.key.slice(-40)}/${text.slice(at, at + blockTokens).join()}`, text.slice(at, at + blockTokens));
    blocks.push(parent);
  }
  return blocks;
}

test(`a block goes that has none behind it and is not skipped, as long as there is one (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const texts = new StoredTexts();
  const reuse = new TextReuse(seed);
  const order = new ReuseOrder(reuse);
  const there = new Set<StoredBlock>();
  let [went, none] = [0, 0];
  for (let turn = 0; turn < 4_000; turn += 1) {
    if (random.chance(0.5)) {
      const text = new Int32Array(blockTokens * (1 + random.integer(4)));
      for (let at = 0; at < text.length; at += blockTokens) text.fill(random.integer(2), at, at + blockTokens);
      const blocks = blocksOf(texts, text);
      reuse.note(blocks.at(-1)!, text, { promptTokens: text.length, newTokens: random.integer(text.length), answerTokens: 0 });
      for (const block of blocks) block.pins = 1; // stays in the tree
      for (const block of blocks.reverse()) {
        order.set(block);
        there.add(block);
      }
    } else {
      const skippedShare = random.chance(0.1) ? 1 : 0.4;
      const skipped = new Set([...there].filter(() => random.chance(skippedShare)));
      const ends = [...there].filter((block) => !block.children.some((child) => there.has(child)));
      const taken = order.take((block) => skipped.has(block));
      if (taken === undefined) {
        t.true(ends.every((block) => skipped.has(block)));
        none += 1;
      } else {
        t.true(ends.includes(taken) && !skipped.has(taken));
        there.delete(taken);
        went += 1;
      }
    }
  }
  t.true(went > 500 && none > 10);
  while (there.size > 0) t.true(there.delete(order.take(() => false)!));
  t.is(order.take(() => false), undefined);
});

test('a text that stays is asked about once, however many blocks it has, and goes from its end when it may', (t) => {
  const texts = new StoredTexts();
  const reuse = new TextReuse(seed);
  const order = new ReuseOrder(reuse);
  const text = Int32Array.from({ length: 400 * blockTokens }, (_, at) => at);
  const blocks = blocksOf(texts, text);
  reuse.note(blocks.at(-1)!, text, { promptTokens: text.length, newTokens: text.length, answerTokens: 0 });
  for (const block of [...blocks].reverse()) order.set(block);
  let asked = 0;
  t.is(order.take(() => { asked += 1; return true; }), undefined);
  t.is(asked, 1);
  for (const block of [...blocks].reverse()) t.is(order.take(() => false), block);
});

/** Ends of texts, the one used longest ago first. */
function* oldest(contents: TierContents): Generator<StoredBlock> {
  for (const block of contents.blocks()) if (!block.children.some((child) => contents.has(child))) yield block;
}

/** Share of the tokens that conversations, which return after many texts that never do, find in a tier with room for all conversations. */
function foundBy(order: 'reuse' | 'last use'): number {
  const random = new Random(seed);
  const texts = new StoredTexts();
  const reuse = new TextReuse(seed);
  const tier = { name: 'simulated', capacityBytes: 12 * 1_024 } as Tier;
  const contents = new TierContents(tier, 0, texts, { importantTokens: () => 1, reuse });
  const conversations = Array.from({ length: 12 }, () => Array.from({ length: 128 }, () => random.integer(50_000)));
  let [found, asked] = [0, 0];
  const serve = (text: Int32Array, isCounted: boolean): void => {
    const matched = texts.match('a'.repeat(64), text).tokens;
    if (isCounted) {
      found += matched;
      asked += text.length;
    }
    const blocks = blocksOf(texts, text);
    reuse.note(blocks.at(-1)!, text, { promptTokens: text.length, newTokens: text.length - matched, answerTokens: 0 });
    contents.use(blocks.at(-1)!);
    for (const block of blocks) {
      if (contents.has(block)) continue;
      if (order === 'reuse') contents.evict(contents.excess(blockTokens), (other) => blocks.includes(other));
      else for (const other of oldest(contents)) if (contents.excess(blockTokens) > 0 && !blocks.includes(other)) contents.remove(other);
      contents.add(block, blockTokens);
    }
  };
  for (let round = 0; round < 400; round += 1) {
    for (let other = 0; other < 3; other += 1) serve(Int32Array.from({ length: 640 }, () => random.integer(50_000)), false);
    const conversation = conversations[round % conversations.length]!;
    conversation.push(...Array.from({ length: 16 }, () => random.integer(50_000)));
    if (conversation.length > 900) conversation.splice(128); // another begins
    serve(Int32Array.from(conversation), round >= 150);
  }
  return found / asked;
}

slow('a workload of conversations')(`a tier that keeps by \`adaptive\` finds conversations that return, where one that keeps what was used last finds none (seed ${seed})`, (t) => {
  const [recent, adaptive] = [foundBy('last use'), foundBy('reuse')];
  t.log({ recent, adaptive });
  t.true(recent < 0.05 && adaptive > 0.6);
});
