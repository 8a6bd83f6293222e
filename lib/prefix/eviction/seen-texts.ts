// SeenTexts: how much of a text begins as some text did that was seen lately, and whether a prompt ended there,
// whatever has been evicted since. It remembers hashes at marks, which are lengths at most 256 tokens or a 128th of the
// text apart. One pass over a text also gives the hashes at its places, where ReuseHistory knows it again. Holds no
// tokens, and as much memory as when it was made.
//
// Behind the first tokens only every fourth is hashed: texts that differ differ in more, and a mistake costs a bad
// guess. The hash starts from a seed of the cache's own, as JavaScript's Map has none for numbers: else clients could
// fill one of its buckets.

import { mix32, Random } from '../../base/random.js';

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
