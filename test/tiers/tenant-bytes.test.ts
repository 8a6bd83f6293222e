// What a tier drops where tenants have a bound of their own, whatever it keeps: against a plain model, at every call.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { StoredTexts, type StoredBlock } from '#internal/tiers/stored-texts.js';
import { ownerOf, TierContents } from '#internal/tiers/tier-contents.js';
import { TextReuse } from '#internal/tiers/block-order.js';
import type { Tier, TierKeeping } from '#internal/tiers/tier.js';
import { seedOf } from '../helpers/seed.js';

const blockTokens = 16;
const limitBlocks = 10;
const keepings: readonly TierKeeping[] = ['adaptive', 'important'];
const tenants = ['a', 'b', undefined];

for (const keeps of keepings) {
  const seed = seedOf(`tenant bytes ${keeps}`);
  test(`of a tenant that is above its bound goes what it used longest ago, ends first, also in a tier that keeps '${keeps}' (seed ${seed})`, (t) => {
    const random = new Random(seed);
    const texts = new StoredTexts();
    const tier = { name: 'made', capacityBytes: 1_000 * blockTokens, tenantBytes: limitBlocks * blockTokens, keeps } as unknown as Tier;
    const contents = new TierContents(tier, 0, texts, { importantTokens: ({ key }) => key.length % 5, reuse: new TextReuse(seed) });
    /** Two domains of each tenant; some are named late, as those that a tier has from before. */
    const domains = Array.from({ length: 6 }, (_, index) => ({ key: `${index}`.repeat(64), tenant: tenants[index % 3], isNamed: random.chance(0.5) }));
    const used = new Map<StoredBlock, number>();
    let clock = 0;
    const ownerOfBlock = (block: StoredBlock): string => {
      const domain = domains.find(({ key }) => key === block.root.key)!;
      return domain.isNamed ? ownerOf({ tenant: domain.tenant } as Parameters<typeof ownerOf>[0]) : domain.key;
    };
    const name = (index: number): void => {
      const { key, tenant } = domains[index]!;
      const owner = ownerOf({ tenant } as Parameters<typeof ownerOf>[0]);
      const root = texts.root(key);
      if (root.owner === root.key) {
        contents.tenants!.rename(root, owner);
        for (const [block, at] of used) if (block.root === root) used.set(block, at - 1e9); // what is named late was not used since
      }
      root.owner = owner;
      domains[index]!.isNamed = true;
    };
    const use = (block: StoredBlock): void => {
      for (let at: StoredBlock | undefined = block; at !== undefined; at = at.parent) if (used.has(at)) used.set(at, clock += 1);
      contents.use(block);
    };
    let went = 0;
    for (let turn = 0; turn < 3_000; turn += 1) {
      const index = random.integer(domains.length);
      const domain = domains[index]!;
      if (domain.isNamed || random.chance(0.01)) name(index);
      let parent = texts.root(domain.key);
      const letter = random.integer(4);
      for (let at = 0; at <= random.integer(4); at += 1) {
        const block = texts.add(parent, `${domain.key.slice(0, 1)}/${letter}/${at}`, new Int32Array(blockTokens).fill(letter));
        block.pins += 1;
        if (!contents.has(block)) {
          const excess = contents.tenantExcess(block, blockTokens);
          const isAbove = (other: StoredBlock): boolean => {
            for (let above = block.parent; above !== undefined; above = above.parent) if (above === other) return true;
            return false;
          };
          if (excess > 0) {
            const mine = [...used.keys()].filter((one) => ownerOfBlock(one) === ownerOfBlock(block));
            const evicted = contents.evictOfTenant(block, excess);
            t.true(evicted.length * blockTokens >= excess, `turn ${turn}: ${evicted.length} went of ${mine.length}`);
            for (const one of evicted) {
              t.is(ownerOfBlock(one), ownerOfBlock(block));
              t.false(one.children.some((child) => used.has(child) && !evicted.includes(child)), 'no hole');
              const latest = Math.max(...evicted.map((each) => used.get(each)!));
              const olderLeaves = mine.filter((each) => !evicted.includes(each) && !isAbove(each) && used.get(each)! < latest && !each.children.some((child) => used.has(child)));
              t.deepEqual(olderLeaves, [], 'nothing older stays');
            }
            for (const one of evicted) used.delete(one);
            went += evicted.length;
          }
          contents.add(block, blockTokens);
          used.set(block, 0);
        }
        use(block);
        block.pins -= 1;
        parent = block;
      }
      for (const owner of new Set([...used.keys()].map(ownerOfBlock))) {
        const its = [...used.keys()].filter((one) => ownerOfBlock(one) === owner);
        t.is(contents.tenants!.bytesOf(its[0]!), its.length * blockTokens);
      }
      t.is(contents.tenants!.bytes, contents.bytes);
      t.is(contents.count, used.size);
    }
    t.true(went > 100, `${went} went`);
  });
}
