// PlacedBlocks: which whole blocks each tier has got or lost since the last question, by their keys: for routers, which
// know from it what a process can load instead of compute. Made only for them. Reads the texts, changes nothing.

import type { StoredBlock, StoredTexts } from './stored-texts.js';

/** Blocks that a tier has from now on, one behind the other in a text. */
export interface PlacedRun {
  readonly tier: string;
  /** Key of the block before the first; undefined where it starts a text. */
  readonly parent: string | undefined;
  readonly keys: string[];
  /** Tokens of the text before the first block. */
  readonly from: number;
}

/** To be applied in this order. */
export interface PlacedChanges {
  readonly removed: readonly { readonly tier: string; readonly keys: string[] }[];
  readonly stored: readonly PlacedRun[];
}

export class PlacedBlocks {
  readonly #texts: StoredTexts;
  readonly #names: readonly string[];
  readonly #blockTokens: number;
  /** By tier: whether it has the block, of those for which that has changed. */
  readonly #changed: Map<StoredBlock, boolean>[];
  /** By tier: what was told that it has. */
  readonly #told: Set<StoredBlock>[];
  #onChange: () => void = () => {};

  /** @param names Of the tiers, by number. */
  constructor(texts: StoredTexts, names: readonly string[], blockTokens: number) {
    this.#texts = texts;
    this.#names = names;
    this.#blockTokens = blockTokens;
    this.#changed = names.map(() => new Map());
    this.#told = names.map(() => new Set());
    texts.onPlaced = (block, tier, isThere) => {
      if (block.tokens.length < blockTokens) return;
      this.#changed[tier]!.set(block, isThere);
      this.#onChange();
    };
  }

  get blockTokens(): number {
    return this.#blockTokens;
  }

  /** `listener` is called in the middle of a change: there may be something to tell. */
  listen(listener: () => void): void {
    this.#onChange = listener;
  }

  /** What has changed since the last call. */
  takeChanges(): PlacedChanges {
    const removed: { tier: string; keys: string[] }[] = [];
    const stored: PlacedRun[] = [];
    for (const [number, changed] of this.#changed.entries()) {
      const told = this.#told[number]!;
      const tier = this.#names[number]!;
      const keys: string[] = [];
      const runs = new Map<StoredBlock, PlacedRun>(); // by their last block
      const inOrder = [...changed].sort(([a], [b]) => a.from - b.from);
      for (const [block, isThere] of inOrder) {
        if (isThere === told.has(block)) continue;
        if (!isThere) {
          told.delete(block);
          keys.push(block.key);
          continue;
        }
        told.add(block);
        const parent = block.parent!;
        const run = runs.get(parent)
          ?? { tier, parent: parent.parent === undefined ? undefined : parent.key, keys: [], from: block.from };
        if (!runs.delete(parent)) stored.push(run);
        run.keys.push(block.key);
        runs.set(block, run);
      }
      changed.clear();
      if (keys.length > 0) removed.push({ tier, keys });
    }
    return { removed, stored };
  }

  /** Forgets what was told, so that all that tiers have is told next. */
  startOver(): void {
    for (const told of this.#told) told.clear();
    for (const block of this.#texts.all()) {
      if (block.tokens.length < this.#blockTokens) continue;
      for (const [number, changed] of this.#changed.entries()) {
        if ((block.tiers & (1 << number)) !== 0) changed.set(block, true);
      }
    }
  }
}
