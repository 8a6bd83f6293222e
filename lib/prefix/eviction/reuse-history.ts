// ReuseHistory: which of the texts released lately came back, whether their rows were kept or not. It knows a text, or
// another that begins as it did, again by a hash at a few places (SeenTexts); and ReuseRates learns of each piece how
// old it is and when it is used. Holds no tokens. What is evicted does not matter here, and that keeps what is learnt
// free of what the policy decided before.
//
// A place is a length of one or one and a half times a power of two: two texts that agree to some length share the
// places up to it, wherever a text was cut. Of each text the places in its last 31/32 count, about ten.

import { enlarged } from '../../base/typed-arrays.js';
import type { ReleasedRequest } from './eviction-policy.js';
import { ageBuckets, type ReuseRates } from './reuse-rates.js';
import { SeenTexts } from './seen-texts.js';
import { requestClass, textClass, turns, type Turn } from './text-class.js';

/** Pieces remembered: at some ten for each text the last 6,000 releases, in up to 7 MB. */
const capacity = 2 ** 16;
const gone = 255;

/** What is known of a released text. */
export interface KnownText {
  /** The turn of its request. */
  turn: Turn;
  /** The class of its request. */
  ofRequest: number;
  /** Tokens up to the last place in the text. */
  tokens: number;
  /** How often the text up to there was used. */
  uses: number;
}

export class ReuseHistory {
  readonly #rates: ReuseRates;
  readonly #seen: SeenTexts;
  /** The piece of a hash. */
  readonly #pieces = new Map<number, number>();
  // By piece; a ring, in the order of their last use, whose places are made as they are needed first.
  #hash = new Float64Array(0);
  #usedAt = new Float64Array(0);
  #uses = new Int32Array(0);
  #class = new Uint8Array(0);
  #weight = new Float64Array(0);
  #age = new Uint8Array(0);
  /** Pieces ever noted; the ring holds the last of them. */
  #noted = 0;
  /** By age: the first piece that has not reached it. */
  readonly #young = new Float64Array(ageBuckets);
  #now = 0;
  readonly #known: KnownText = { turn: turns.first, ofRequest: 0, tokens: 0, uses: 0 };

  constructor(rates: ReuseRates, hashSeed: number) {
    this.#rates = rates;
    this.#seen = new SeenTexts(hashSeed);
  }

  /**
   * A sequence of `request` was released that had text[0, tokens). Texts of different roots are different texts:
   * tenants do not share. The result is valid until the next call.
   */
  note(root: number, text: Int32Array, tokens: number, request: ReleasedRequest): KnownText {
    this.#now += 1;
    this.#rates.moveTo(this.#now);
    this.#growOlder();
    const { promptTokens, newTokens, answerTokens } = request;
    const seen = this.#seen;
    const known = this.#known;
    seen.read(root, text, tokens, promptTokens);
    known.turn = seen.seenTokens === 0 ? turns.first : seen.isEnd ? turns.continues : turns.branches;
    known.ofRequest = requestClass(Math.min(newTokens, promptTokens - seen.seenTokens), answerTokens);
    known.tokens = 0;
    for (let at = 0; at < seen.places; at += 1) {
      const piece = this.#use(seen.hash[at]!, (seen.place[at]! - known.tokens) / tokens, known);
      known.tokens = seen.place[at]!;
      known.uses = this.#uses[piece]!;
    }
    return known;
  }

  #use(hash: number, weight: number, { turn, ofRequest }: KnownText): number {
    const found = this.#pieces.get(hash);
    const piece = this.#noted % capacity;
    this.#reserve(piece);
    this.#noted += 1;
    if (found === undefined) {
      this.#forget(piece, false);
      this.#uses[piece] = 1;
      this.#weight[piece] = weight;
    } else {
      this.#forget(found, true);
      if (found !== piece) this.#forget(piece, false);
      this.#uses[piece] = this.#uses[found]! + 1;
      this.#weight[piece] = this.#weight[found]!;
    }
    this.#pieces.set(hash, piece);
    this.#hash[piece] = hash;
    this.#usedAt[piece] = this.#now;
    this.#age[piece] = 0;
    this.#class[piece] = textClass(this.#uses[piece]!, turn, ofRequest);
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

  #reserve(piece: number): void {
    const before = this.#age.length;
    if (piece < before) return;
    const length = Math.min(capacity, Math.max(1_024, 2 * before));
    this.#hash = enlarged(this.#hash, length);
    this.#usedAt = enlarged(this.#usedAt, length);
    this.#uses = enlarged(this.#uses, length);
    this.#class = enlarged(this.#class, length);
    this.#weight = enlarged(this.#weight, length);
    this.#age = enlarged(this.#age, length).fill(gone, before);
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
