// ImportanceMeans: how important the tokens of each block were to the requests that read it, as a running mean with
// decay. A hint: it may be wrong, stale or forgotten, and no answer depends on it. Bounded; forgets the blocks that
// were noted longest ago. And the order in which a block's tokens are best stored by it, and what an order costs to
// read. Pure.

import type { PrefixDomain } from '../../prefix/domain.js';
import type { CachedExtent, SelectedExtent } from '../../prefix/eviction/eviction-policy.js';
import type { StoredBlock } from '../stored-texts.js';
import type { TierSet } from '../tier-set.js';

/** Options of `ImportanceMeans`. */
export interface ImportanceMeansOptions {
  /**
   * Share of a mean that a request leaves, once the mean has as many notes as matter, 0 … below 1. Default 0.9: about
   * the last ten count.
   */
  readonly decay?: number;
  /** Tokens that it keeps at most, 4 bytes each; the block that was noted last stays. Default 4,194,304. */
  readonly mostTokens?: number;
}

interface Noted {
  readonly means: Float32Array;
  notes: number;
}

export class ImportanceMeans {
  readonly #decay: number;
  readonly #mostTokens: number;
  /** The one that was noted longest ago first. */
  readonly #noted = new Map<string, Noted>();
  #tokens = 0;

  constructor({ decay = 0.9, mostTokens = 2 ** 22 }: ImportanceMeansOptions = {}) {
    this.#decay = decay;
    this.#mostTokens = mostTokens;
  }

  /** Blocks that are kept. */
  get blocks(): number {
    return this.#noted.size;
  }

  /** Tokens of them. */
  get tokens(): number {
    return this.#tokens;
  }

  /**
   * Takes in what each token of a block was worth to a request, 0 or more. A block of another length than before begins
   * anew.
   */
  note(key: string, weights: Float32Array): void {
    const { means, notes } = this.#take(key, weights.length);
    const share = this.#shareOf(notes);
    for (let token = 0; token < means.length; token += 1) means[token]! += share * (weights[token]! - means[token]!);
  }

  /** Its tokens' means. Read only, and valid until the next note; undefined: never noted, or forgotten. */
  of(key: string): Float32Array | undefined {
    return this.#noted.get(key)?.means;
  }

  /** The sum of its tokens' means: how many tokens a request selects of it. Undefined: never noted, or forgotten. */
  sumOf(key: string): number | undefined {
    return this.#noted.get(key)?.means.reduce((sum, mean) => sum + mean, 0);
  }

  /** Requests that noted it, since it is kept. */
  notesOf(key: string): number {
    return this.#noted.get(key)?.notes ?? 0;
  }

  /** Keys of the blocks that are kept, the one that was noted last first. */
  keys(): string[] {
    return [...this.#noted.keys()].toReversed();
  }

  /** Drops a block, where it is kept. */
  forget(key: string): void {
    const noted = this.#noted.get(key);
    if (noted === undefined) return;
    this.#noted.delete(key);
    this.#tokens -= noted.means.length;
  }

  /** Forgets all. */
  clear(): void {
    this.#noted.clear();
    this.#tokens = 0;
  }

  /** The plain mean of the first notes, then one that fades. */
  #shareOf(notes: number): number {
    return Math.max(1 / notes, 1 - this.#decay);
  }

  /** Of a block that is noted now. */
  #take(key: string, count: number): Noted {
    const known = this.#noted.get(key);
    const noted = known?.means.length === count ? known : { means: new Float32Array(count), notes: 0 };
    this.forget(key);
    noted.notes += 1;
    this.#noted.set(key, noted);
    this.#tokens += count;
    for (const [oldest] of this.#noted) {
      if (this.#tokens <= this.#mostTokens || oldest === key) break;
      this.forget(oldest);
    }
    return noted;
  }
}

/**
 * Tokens by importance, the highest first, equals in the order of the text: `storedToLogical` of a block that is
 * reordered.
 */
export function orderByImportance(means: Float32Array): Int32Array {
  return Int32Array.from(means, (_, token) => token).sort((a, b) => means[b]! - means[a]! || a - b);
}

/** Of each token, its row. */
export function rowsOfOrder(storedToLogical: Int32Array): Int32Array {
  const rows = new Int32Array(storedToLogical.length);
  storedToLogical.forEach((token, row) => { rows[token] = row; });
  return rows;
}

/** Chunks of `chunkTokens` rows that hold the tokens. `rows`: of each token; undefined: in the order of the text. */
export function chunksHolding(tokens: Int32Array, rows: Int32Array | undefined, chunkTokens: number): number {
  const chunks = new Set<number>();
  for (const token of tokens) chunks.add(Math.floor((rows?.[token] ?? token) / chunkTokens));
  return chunks.size;
}

// ChoiceNotes: which tokens of a stored text one request's layers chose. Once the last layer has chosen, each whole
// block is told how important its tokens were to the request, for the order in which they are best stored. Hints alone:
// no answer depends on them.

export class ChoiceNotes {
  readonly #means: ImportanceMeans;
  readonly #blocks: readonly StoredBlock[];
  readonly #from: number;
  readonly #done: (isNoted: boolean) => void;
  /** By token: layers that chose it. */
  readonly #chosen: Float32Array;
  #layers = 0;

  /**
   * `blocks` hold the text [from, to), which is chosen from. `done` is called once all layers have chosen: whether any
   * of them says something.
   */
  constructor(
    means: ImportanceMeans, blocks: readonly StoredBlock[], from: number, to: number, done: (isNoted: boolean) => void,
  ) {
    this.#done = done;
    this.#means = means;
    this.#blocks = blocks;
    this.#from = from;
    this.#chosen = new Float32Array(to - from);
  }

  /** A layer chose these tokens of the text. One that was given all of them says nothing of any. */
  add(chosen: Int32Array): void {
    if (chosen.length === this.#chosen.length) return;
    for (const token of chosen) this.#chosen[token]! += 1;
    this.#layers += 1;
  }

  /**
   * All layers have chosen: notes the share of them that chose each token, in blocks that lie in the text as a whole.
   */
  finish(): void {
    const isNoted = this.#layers > 0;
    if (isNoted) this.#note(this.#chosen.map((layers) => layers / this.#layers));
    this.#done(isNoted);
  }

  #note(shares: Float32Array): void {
    for (const { key, from, to } of this.#blocks) {
      const [first, end] = [from - this.#from, to - this.#from];
      if (first >= 0 && end <= shares.length) this.#means.note(key, shares.subarray(first, end));
    }
  }
}

// What selections have made of a text, by the running means and the uses of the blocks in which tiers have it: for the
// device's eviction policies, whose text lies in rows, not in blocks. A hint. Changes nothing.

/** As `SelectedOf`. */
export function selectedOf(
  set: TierSet, means: ImportanceMeans, domain: PrefixDomain, { from, to, copyText }: CachedExtent,
): SelectedExtent | undefined {
  if (means.blocks === 0) return undefined;
  const { blocks, partial } = set.match(domain, copyText());
  let [chosenTokens, uses, isKnown] = [to - from, 0, false];
  for (const block of partial === undefined ? blocks : [...blocks, partial]) {
    const noted = block.to > from ? means.of(block.key) : undefined;
    if (noted === undefined) continue;
    [isKnown, uses] = [true, block.uses];
    for (let token = Math.max(from, block.from); token < Math.min(to, block.to); token += 1) {
      chosenTokens -= 1 - noted[token - block.from]!;
    }
  }
  return isKnown ? { chosenTokens, uses } : undefined;
}
