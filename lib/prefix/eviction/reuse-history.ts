// ReuseHistory: which of the texts released lately came back, whether their rows were kept or not. It remembers a hash of a
// text at a few places, so a text that returns, or another that begins as it did, is known again; ReuseRates hears of each
// piece how old it is and when it is used. Holds no tokens. What is evicted does not matter here, and that keeps what is
// learnt free of what the policy decided before.
//
// A place is a length of one or one and a half times a power of two: two texts that agree to some length share the places
// up to it, without anybody having to know where a text was cut. Of each text the places in its last 31/32 count, about ten.
// Behind the first tokens only every fourth is hashed: texts that differ differ in more, and a mistake costs a bad guess. The hash
// starts from a seed of the cache's own, as JavaScript's Map has none for numbers: else clients could fill one of its buckets.

import { mix32, Random } from '../../base/random.js';
import { ageBuckets, textClass, type ReuseRates } from './reuse-rates.js';

/** Pieces remembered: at some ten for each text the last 6,000 releases, in about 7 MB. */
const capacity = 2 ** 16;
const gone = 255;
/** Tokens at the start of a text that are hashed one by one. */
const densePlaces = 256;

/** What is known of the end of a text. */
export interface KnownEnd {
  /** Tokens up to the last place in the text. */
  tokens: number;
  /** How often the text up to there was used. */
  uses: number;
  /** Its class. */
  ofClass: number;
}

export class ReuseHistory {
  readonly #rates: ReuseRates;
  /** What the two halves of a hash start with. */
  readonly #seeds: readonly [low: number, high: number];
  /** The piece of a hash. */
  readonly #pieces = new Map<number, number>();
  // By piece; a ring, in the order of their last use.
  readonly #hash = new Float64Array(capacity);
  readonly #usedAt = new Float64Array(capacity);
  readonly #uses = new Uint32Array(capacity);
  readonly #class = new Uint8Array(capacity);
  readonly #weight = new Float64Array(capacity);
  /** Tokens of the prompt that first brought it. */
  readonly #tokens = new Uint32Array(capacity);
  readonly #age = new Uint8Array(capacity).fill(gone);
  /** Pieces ever noted; the ring holds the last of them. */
  #noted = 0;
  /** By age: the first piece that has not reached it. */
  readonly #young = new Float64Array(ageBuckets);
  #now = 0;
  readonly #end: KnownEnd = { tokens: 0, uses: 0, ofClass: 0 };

  constructor(rates: ReuseRates, hashSeed: number) {
    this.#rates = rates;
    const random = new Random(hashSeed);
    this.#seeds = [random.integer(2 ** 32), random.integer(2 ** 32)];
  }

  /**
   * A sequence was released that had text[0, tokens). Texts of different roots are different texts: tenants do not share.
   * The result is valid until the next call.
   */
  note(root: number, text: Int32Array, tokens: number): KnownEnd {
    this.#now += 1;
    this.#rates.moveTo(this.#now);
    this.#growOlder();
    const end = this.#end;
    end.tokens = 0;
    let low = mix32(root, this.#seeds[0]);
    let high = mix32(root, this.#seeds[1]);
    let before = 0;
    let usesBefore = 0;
    for (let at = 0, place = 1; place <= tokens; place = placeAfter(place)) {
      for (; at < place; at += at < densePlaces ? 1 : 4) {
        low = Math.imul(low ^ text[at]!, 0x85ebca6b);
        low ^= low >>> 15;
        high = Math.imul(high ^ text[at]!, 0xc2b2ae35);
        high ^= high >>> 13;
      }
      if (32 * place <= tokens) continue;
      // 53 bits: in some ten thousand million requests one piece is taken for another, which costs a bad guess
      const piece = this.#use((low >>> 0) * 2 ** 21 + (high >>> 11), usesBefore, (place - before) / tokens, tokens);
      if (this.#uses[piece]! > 1) usesBefore = this.#uses[piece]! - 1;
      before = place;
      end.tokens = place;
      end.uses = this.#uses[piece]!;
      end.ofClass = this.#class[piece]!;
    }
    return end;
  }

  #use(hash: number, usesBefore: number, weight: number, tokens: number): number {
    const found = this.#pieces.get(hash);
    const piece = this.#noted % capacity;
    this.#noted += 1;
    if (found === undefined) {
      this.#forget(piece, false);
      this.#uses[piece] = 1;
      this.#weight[piece] = weight;
      this.#tokens[piece] = tokens;
    } else {
      this.#forget(found, true);
      if (found !== piece) this.#forget(piece, false);
      this.#uses[piece] = this.#uses[found]! + 1;
      this.#weight[piece] = this.#weight[found]!;
      this.#tokens[piece] = this.#tokens[found]!;
    }
    this.#pieces.set(hash, piece);
    this.#hash[piece] = hash;
    this.#usedAt[piece] = this.#now;
    this.#age[piece] = 0;
    this.#class[piece] = textClass({ uses: this.#uses[piece]!, usesBefore, tokens: this.#tokens[piece]! });
    this.#rates.enter(this.#class[piece]!, 0, this.#weight[piece]!);
    return piece;
  }

  #forget(piece: number, isReused: boolean): void {
    const age = this.#age[piece]!;
    if (age === gone) return;
    this.#rates.leave(this.#class[piece]!, age, this.#weight[piece]!, isReused);
    this.#age[piece] = gone;
    this.#pieces.delete(this.#hash[piece]!);
  }

  /** Each piece comes to each age once, and the pieces come to it in their order. */
  #growOlder(): void {
    for (let age = 1; age < ageBuckets; age += 1) {
      const limit = this.#now - 2 ** age;
      let next = Math.max(this.#young[age]!, this.#noted - capacity);
      for (; next < this.#noted && this.#usedAt[next % capacity]! <= limit; next += 1) {
        const piece = next % capacity;
        if (this.#age[piece] !== age - 1) continue;
        this.#rates.leave(this.#class[piece]!, age - 1, this.#weight[piece]!, false);
        this.#rates.enter(this.#class[piece]!, age, this.#weight[piece]!);
        this.#age[piece] = age;
      }
      this.#young[age] = next;
    }
  }
}

/** 1, 2, 3, 4, 6, 8, 12, 16, 24 … */
function placeAfter(place: number): number {
  const power = 2 ** (31 - Math.clz32(place));
  return place === power && place > 1 ? place + place / 2 : 2 * power;
}
