// A tier at work that can reorder blocks, and what requests noted of them.

import type { Tier } from 'virtual-kv';

import { OpenTier } from '#internal/tiers/open-tier.js';
import { ImportanceMeans } from '#internal/tiers/selection/importance-means.js';
import { Reordering } from '#internal/tiers/selection/reordering.js';
import { type StoredBlock, StoredTexts } from '#internal/tiers/stored-texts.js';
import { TextReuse } from '#internal/tiers/block-order.js';

export class ReorderingWorld {
  readonly means = new ImportanceMeans();
  readonly reordering: Reordering;
  readonly #texts = new StoredTexts();
  readonly #open: OpenTier;

  /** @param tokenBytes Of a token in a tensor. */
  constructor(tier: Pick<Tier, 'name' | 'chunkBytes' | 'reorder'>, tokenBytes: number) {
    const report = (error: unknown): void => { throw error; };
    this.#open = new OpenTier(tier as Tier, {
      number: 0, texts: this.#texts, stripes: 1, report,
      worth: { importantTokens: () => 0, reuse: new TextReuse(0) },
    });
    this.#open.state = 'open';
    this.reordering = new Reordering(
      { all: [this.#open], texts: this.#texts }, this.means, [tokenBytes], { after: 0, report });
  }

  /** The tier has a block from now on. */
  add(key: string, tokens: Int32Array): StoredBlock {
    const block = this.#texts.add(this.#texts.root('root'), key, tokens);
    this.#open.add(block, tokens.length, new Uint32Array(1));
    return block;
  }

  /** The tier no longer has it. */
  lose(key: string): void {
    this.#open.lose(key);
  }

  run(mostBlocks: number, signal?: AbortSignal): Promise<number> {
    return this.reordering.run({ mostBlocks, signal }, Promise.resolve());
  }
}
