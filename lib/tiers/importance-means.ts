// ImportanceMeans: how important the tokens of each block were to the requests that read it, as a running mean with
// decay. A hint: it may be wrong, stale or forgotten, and no answer depends on it. Bounded; forgets the blocks that
// were noted longest ago. And the order in which a block's tokens are best stored by it, and what an order costs to
// read. Pure.

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
