// Random: a small seeded generator, so that a workload, a sample or a random test can be repeated from its seed.
// xoshiro128** (Blackman and Vigna 2018, public domain, https://prng.di.unimi.it/xoshiro128starstar.c), its four words
// filled by the murmur3 finaliser over a Weyl sequence. Same seed, same numbers, on every machine. Not for secrets.

const GOLDEN = 0x9e3779b9;

/** Mixes two 32-bit words into one with the murmur3 finaliser. A stateless hash for "choose 1 in N of these". */
export function mix32(a: number, b: number): number {
  let h = (a ^ Math.imul(b, GOLDEN)) | 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

const rotateLeft = (word: number, bits: number): number => (word << bits) | (word >>> (32 - bits));

export class Random {
  /** The seed that this generator was made from. Print it where a run may have to be repeated. */
  readonly seed: number;
  #a: number;
  #b: number;
  #c: number;
  #d: number;

  /** @param seed Any safe integer; its low 53 bits count. */
  constructor(seed: number) {
    this.seed = seed;
    const low = seed >>> 0;
    const high = Math.floor(seed / 2 ** 32) >>> 0;
    this.#a = mix32(low, 1) ^ mix32(high, 5);
    this.#b = mix32(low, 2) ^ mix32(high, 6);
    this.#c = mix32(low, 3) ^ mix32(high, 7);
    this.#d = mix32(low, 4) ^ mix32(high, 8) ^ 1;
    for (let turn = 0; turn < 8; ++turn) this.#word(); // leave the neighbourhood of the seed
  }

  #word(): number {
    const result = Math.imul(rotateLeft(Math.imul(this.#b, 5), 7), 9) >>> 0;
    const shifted = this.#b << 9;
    this.#c ^= this.#a;
    this.#d ^= this.#b;
    this.#b ^= this.#c;
    this.#a ^= this.#d;
    this.#c ^= shifted;
    this.#d = rotateLeft(this.#d, 11);
    return result;
  }

  /** Uniform in [0, 1), 32 bits. */
  next(): number {
    return this.#word() / 2 ** 32;
  }

  /** A uniform integer in [0, bound). */
  integer(bound: number): number {
    return Math.floor(this.next() * bound);
  }

  /** True with this probability. */
  chance(probability: number): boolean {
    return this.next() < probability;
  }

  /** A normal deviate, mean 0 and deviation 1 (Box and Muller; the second of each pair is dropped to keep no state). */
  normal(): number {
    return Math.sqrt(-2 * Math.log(1 - this.next())) * Math.cos(2 * Math.PI * this.next());
  }

  /** A lognormal deviate: `median` in the middle, `deviation` of its natural logarithm. */
  lognormal(median: number, deviation: number): number {
    return median * Math.exp(deviation * this.normal());
  }

  /** An exponential deviate with this mean: the gap between independent arrivals. */
  exponential(mean: number): number {
    return -mean * Math.log(1 - this.next());
  }
}
