// ReuseHistory: which of the texts released lately came back, whether their rows were kept or not. It remembers a hash of a
// text at a few places, so a text that returns, or another that begins as it did, is known again; and ReuseRates learns of each
// piece how old it is and when it is used. Holds no tokens. What is evicted does not matter here, and that keeps what is
// learnt free of what the policy decided before.
//
// A place is a length of one or one and a half times a power of two: two texts that agree to some length share the places
// up to it, wherever a text was cut. Of each text the places in its last 31/32 count, about ten.
// Behind the first tokens only every fourth is hashed: texts that differ differ in more, and a mistake costs a bad guess. The hash
// starts from a seed of the cache's own, as JavaScript's Map has none for numbers: else clients could fill one of its buckets.

import { mix32, Random } from '../../base/random.js';

/** Ages by their power of two: [0, 2), [2, 4), [4, 8) …; the last has no end. */
const ageBuckets = 14;
/** Lengths of prompts by their power of two, the last without end. */
const lengthBuckets = 16;

/**
 * Kinds of text by uses. Of text used once: whether it is a start, goes on from what few had, as a further turn does, or
 * from what many had, as a task over a system prompt does. Of text used again: 2, 3–4, 5–8, 9–32 or more uses.
 */
const kinds = 8;

export const textClasses = kinds * lengthBuckets;

interface TextTraits {
  /** How often the text was used, the present use included; at least 1. */
  readonly uses: number;
  /** How often that before it was, where the text goes on from something; 0: from nothing that was used before. */
  readonly usesBefore: number;
  /** Tokens of the prompt that brought it. */
  readonly tokens: number;
}

export function textClass({ uses, usesBefore, tokens }: TextTraits): number {
  const length = Math.min(lengthBuckets - 1, 31 - Math.clz32(tokens));
  return kindOf(uses, usesBefore) * lengthBuckets + length;
}

function kindOf(uses: number, usesBefore: number): number {
  if (uses > 1) return uses === 2 ? 3 : uses <= 4 ? 4 : uses <= 8 ? 5 : uses <= 32 ? 6 : 7;
  return usesBefore === 0 ? 0 : usesBefore <= 4 ? 1 : 2;
}

/** Events that count as much as what is known otherwise: with 4, half a dozen reuses change a rate, and one does not. */
const trust = 4;
/** Releases after which a count weighs half: enough for some hundred reuses, few enough to follow the hours of a day. */
const halfLife = 512;
/** Releases between two looks at the counts of a kind, a small part of the half-life; the kinds take turns. */
const fitEvery = 32;

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

/**
 * How often cached text is used again, learnt from what was: for each class of text and each age, which is the number of releases since
 * its last use, a rate per release; and from those what a row of such text is worth. Counts fade, so that it follows a workload that
 * changes.
 *
 * Few events have to be enough, so what is known of fewer texts starts from what is known of more: all texts from "the rate is one over
 * the age", where the oldest goes first as in LRU; a kind from all texts; a class from its kind. Each is a factor and then a rate for
 * each age, which never rises with age; `trust` events of its own weigh as much as what it starts from.
 */
export class ReuseRates {
  // By class and age.
  readonly #reuses = new Float64Array(textClasses * ageBuckets);
  /** Releases that texts of this class spent at this age, used again or not. */
  readonly #exposure = new Float64Array(textClasses * ageBuckets);
  readonly #values = new Float64Array(textClasses * ageBuckets);
  /** Texts of this class at this age now, and until when their exposure is counted. */
  readonly #present = new Float64Array(textClasses * ageBuckets);
  readonly #countedTo = new Float64Array(textClasses * ageBuckets);
  /** The starting point: one over the middle of the age. */
  readonly #unknown = Float64Array.from({ length: ageBuckets }, (_, age) => 2 ** -(age + 0.5));
  #now = 0;

  constructor() {
    for (let at = 0; at < this.#values.length; at += 1) this.#values[at] = this.#unknown[at % ageBuckets]!;
  }

  /** Time goes on to `now`. */
  moveTo(now: number): void {
    this.#now = now;
    const turn = (now % fitEvery) / (fitEvery / kinds);
    if (Number.isInteger(turn)) this.#fit(turn);
  }

  /** Text of a class comes to an age; `weight` is what share of a prompt it is. */
  enter(ofClass: number, age: number, weight: number): void {
    const at = ofClass * ageBuckets + age;
    this.#settle(at);
    this.#present[at]! += weight;
  }

  /** Text leaves an age; `isReused`: because it was used again. */
  leave(ofClass: number, age: number, weight: number, isReused: boolean): void {
    const at = ofClass * ageBuckets + age;
    this.#settle(at);
    this.#present[at]! -= weight;
    if (isReused) this.#reuses[at]! += weight;
  }

  /** What a row of such text is worth: the most reuses per release that keeping it for some time can be expected to bring. */
  value(ofClass: number, age: number): number {
    const place = Math.min(ageBuckets - 1, Math.max(0, Math.log2(Math.max(1, age)) - 0.5));
    const low = Math.min(ageBuckets - 2, Math.floor(place));
    const at = ofClass * ageBuckets + low;
    const value = this.#values[at]! + (place - low) * (this.#values[at + 1]! - this.#values[at]!);
    return value + 1e-9 / (1 + age); // the older of two equal ones goes first
  }

  #settle(at: number): void {
    this.#exposure[at]! += this.#present[at]! * (this.#now - this.#countedTo[at]!);
    this.#countedTo[at] = this.#now;
  }

  #fit(kind: number): void {
    const start = kind * lengthBuckets * ageBuckets;
    const end = start + lengthBuckets * ageBuckets;
    const fading = 2 ** (-fitEvery / halfLife);
    for (let at = start; at < end; at += 1) {
      this.#settle(at);
      this.#exposure[at]! *= fading;
      this.#reuses[at]! *= fading;
    }
    const ofAll = fitted(this.#reuses, this.#exposure, this.#unknown);
    const ofKind = fitted(this.#reuses.subarray(start, end), this.#exposure.subarray(start, end), ofAll);
    for (let at = start; at < end; at += ageBuckets) {
      const reuses = this.#reuses.subarray(at, at + ageBuckets);
      const exposure = this.#exposure.subarray(at, at + ageBuckets);
      const values = this.#values.subarray(at, at + ageBuckets);
      if (exposure.some((time) => time > 0)) writeValues(values, shrunk(reuses, exposure, fitted(reuses, exposure, ofKind)));
      else values.set(ofKind);
    }
  }
}

/** Rates by age of one or more classes together, from the rates of a larger set: its factor, then its own ages, not rising. */
function fitted(reuses: Float64Array, exposure: Float64Array, base: Float64Array): Float64Array {
  const events = new Float64Array(ageBuckets).fill(trust);
  const times = new Float64Array(ageBuckets);
  let seen = trust;
  let expected = trust;
  for (let at = 0; at < reuses.length; at += 1) {
    const age = at % ageBuckets;
    events[age]! += reuses[at]!;
    times[age]! += exposure[at]!;
    seen += reuses[at]!;
    expected += exposure[at]! * base[age]!;
  }
  for (let age = 0; age < ageBuckets; age += 1) times[age]! += trust / ((base[age]! * seen) / expected);
  return notRising(events, times);
}

/** Rates by age that may rise and fall, as far as there are events that say so. */
function shrunk(reuses: Float64Array, exposure: Float64Array, base: Float64Array): Float64Array {
  return base.map((rate, age) => (trust + reuses[age]!) / (trust / rate + exposure[age]!));
}

/** events ÷ times where that falls with age, and the ratio of the sums over stretches where it would rise. */
function notRising(events: Float64Array, times: Float64Array): Float64Array {
  const rates = new Float64Array(ageBuckets);
  const stretches: { events: number; times: number; from: number }[] = [];
  for (let age = 0; age < ageBuckets; age += 1) {
    let stretch = { events: events[age]!, times: times[age]!, from: age };
    for (let last = stretches.pop(); last !== undefined; last = stretches.pop()) {
      if (last.events * stretch.times > stretch.events * last.times) {
        stretches.push(last);
        break;
      }
      stretch = { events: last.events + stretch.events, times: last.times + stretch.times, from: last.from };
    }
    stretches.push(stretch);
  }
  for (const { events: sum, times: time, from } of stretches) rates.fill(sum / time, from);
  return rates;
}

/**
 * The value at each age: of all times that the text may be kept, the best ratio of the chance of a reuse to the time in
 * the pool that it takes (the hit density of LHD, Beckmann, Chen and Cidon 2018; a Gittins index). Where rates fall
 * with age it is the rate itself; text that returns after a fixed time is worth more the nearer that time comes.
 */
function writeValues(values: Float64Array, rates: Float64Array): void {
  const chances = rates.map((rate, age) => 1 - Math.exp(-rate * 2 ** Math.max(1, age)));
  for (let age = 0; age < ageBuckets; age += 1) {
    let best = 0;
    let left = 1;
    let hits = 0;
    let time = 0;
    for (let later = age; later < ageBuckets; later += 1) {
      const chance = chances[later]!;
      hits += left * chance;
      time += (left * chance) / rates[later]!;
      left *= 1 - chance;
      best = Math.max(best, hits / time);
    }
    values[age] = best;
  }
}
