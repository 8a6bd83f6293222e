// ReuseHistory: which of the texts released lately came back, whether their rows were kept or not. It knows a text, or
// another that begins as it did, again by a hash at a few places (SeenTexts); and ReuseRates learns of each piece how
// old it is and when it is used. Holds no tokens. What is evicted does not matter here, and that keeps what is learnt
// free of what the policy decided before.
//
// A place is a length of one or one and a half times a power of two: two texts that agree to some length share the
// places up to it, wherever a text was cut. Of each text the places in its last 31/32 count, about ten.

import { mix32, Random } from '../../base/random.js';
import { enlarged } from '../../base/typed-arrays.js';
import type { ReleasedRequest } from './eviction-policy.js';
import { ageBuckets, requestClass, type ReuseRates, textClass, turns, type Turn } from './reuse-rates.js';

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

// SeenTexts: how much of a text begins as some text did that was seen lately, and whether a prompt ended there,
// whatever has been evicted since. It remembers hashes at marks, which are lengths at most 256 tokens or a 128th of the
// text apart. One pass over a text also gives the hashes at its places, where ReuseHistory knows it again. Holds no
// tokens, and as much memory as when it was made.
//
// Behind the first tokens only every fourth is hashed: texts that differ differ in more, and a mistake costs a bad
// guess. The hash starts from a seed of the cache's own, as JavaScript's Map has none for numbers: else clients could
// fill one of its buckets.

/** Tokens at the start of a text that are hashed one by one. */
const densePlaces = 256;
/** The first mark, and the distance of marks in texts that are not long. */
const firstMark = 16;
const markTokens = 256;
/** Tokens at the end of a prompt that templates may write differently in the next turn's. */
const endTokens = 512;
/** Marks remembered: those of some thousands of texts, in 1 MiB. A newer one takes the place of an older. */
const markCapacity = 2 ** 18;

export class SeenTexts {
  /**
   * Of the text that was read last: tokens of its prompt that some earlier text began with, up to a mark. Read only.
   */
  seenTokens = 0;
  /** Whether a prompt, or the answer to it, ended there. Read only. */
  isEnd = false;
  /** Its places in the last 31/32 of it, about ten, and the hash of the text up to each. Read only. */
  places = 0;
  readonly place: Float64Array = new Float64Array(16);
  readonly hash: Float64Array = new Float64Array(16);
  /** What the two halves of a hash start with. */
  readonly #seeds: readonly [low: number, high: number];
  /** By the low half of the hash at a mark: its high half, in which the last bit says that a prompt ended there. */
  readonly #marks = new Int32Array(markCapacity);

  constructor(hashSeed: number) {
    const random = new Random(hashSeed);
    this.#seeds = [random.integer(2 ** 32), random.integer(2 ** 32)];
  }

  /**
   * Reads text[0, tokens), of which the first `promptTokens` are a prompt. Texts of different roots are different
   * texts.
   */
  read(root: number, text: Int32Array, tokens: number, promptTokens: number): void {
    let low = mix32(root, this.#seeds[0]);
    let high = mix32(root, this.#seeds[1]);
    let place = 1;
    let mark = firstMark;
    this.seenTokens = 0;
    this.isEnd = false;
    this.places = 0;
    for (let at = 0; Math.min(place, mark) <= tokens;) {
      const stop = Math.min(place, mark);
      for (; at < stop; at += at < densePlaces ? 1 : 4) {
        low = Math.imul(low ^ text[at]!, 0x85ebca6b);
        low ^= low >>> 15;
        high = Math.imul(high ^ text[at]!, 0xc2b2ae35);
        high ^= high >>> 13;
      }
      if (stop === mark) {
        this.#see(low, high, mark, promptTokens);
        mark += mark < markTokens ? mark : Math.max(markTokens, 2 ** (24 - Math.clz32(mark)));
      }
      if (stop === place) {
        if (32 * place > tokens) this.#notePlace(low, high, place);
        place = placeAfter(place);
      }
    }
  }

  #see(low: number, high: number, mark: number, promptTokens: number): void {
    const at = low & (markCapacity - 1);
    const before = this.#marks[at]!;
    const isSeen = ((before ^ high) & ~1) === 0;
    const wasEnd = isSeen && (before & 1) === 1;
    if (isSeen && mark <= promptTokens) {
      this.seenTokens = mark;
      this.isEnd = wasEnd;
    }
    this.#marks[at] = (high & ~1) | (wasEnd || mark + endTokens > promptTokens ? 1 : 0);
  }

  /**
   * 53 bits of the hash: in some ten thousand million requests one place is taken for another, which costs a bad guess.
   */
  #notePlace(low: number, high: number, place: number): void {
    this.place[this.places] = place;
    this.hash[this.places] = (low >>> 0) * 2 ** 21 + (high >>> 11);
    this.places += 1;
  }
}

/** 1, 2, 3, 4, 6, 8, 12, 16, 24 … */
function placeAfter(place: number): number {
  const power = 2 ** (31 - Math.clz32(place));
  return place === power && place > 1 ? place + place / 2 : 2 * power;
}
