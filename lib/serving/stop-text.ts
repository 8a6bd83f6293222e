// StopText: ends a text at the first stop string in it, wherever pieces of it begin and end. Text that may be the
// beginning of a stop string is held back until that is known. Of several stop strings the one counts that ends first;
// of these the one that began first.

/** Ends a text, which comes in pieces, at the first of its stop strings. For one answer. */
export class StopText {
  readonly #stops: readonly string[];
  /** Characters of the shortest; Infinity: there are none. */
  readonly #leastCharacters: number;
  #held = '';
  #stopString: string | undefined;

  /** `stops`: none of them empty. */
  constructor(stops: readonly string[]) {
    this.#stops = stops;
    this.#leastCharacters = stops.reduce((least, { length }) => Math.min(least, length), Infinity);
  }

  /** The stop string that came; nothing is returned from then on. */
  get stopString(): string | undefined {
    return this.#stopString;
  }

  /** Takes the next piece; returns the text before a stop string that surely belongs to the answer. */
  push(piece: string): string {
    if (this.#stopString !== undefined) return '';
    if (this.#stops.length === 0) return piece;
    const text = this.#held + piece;
    let [end, start] = [Infinity, Infinity];
    if (text.length >= this.#leastCharacters) for (const stop of this.#stops) {
      const at = text.indexOf(stop);
      if (at < 0 || at + stop.length > end || (at + stop.length === end && at > start)) continue;
      [end, start] = [at + stop.length, at];
      this.#stopString = stop;
    }
    const isStopped = start < Infinity;
    const whole = isStopped ? start : text.length - this.#longestBeginning(text);
    this.#held = isStopped ? '' : text.slice(whole);
    return text.slice(0, whole);
  }

  /** The text that was held back, at the end of the answer. */
  end(): string {
    const held = this.#held;
    this.#held = '';
    return held;
  }

  /** Characters at the end of the text with which some stop string begins, at most all but its last. */
  #longestBeginning(text: string): number {
    let longest = 0;
    for (const stop of this.#stops) {
      const first = stop.charCodeAt(0);
      const from = Math.max(0, text.length - stop.length + 1);
      for (let at = from; text.length - at > longest; at += 1) {
        if (text.charCodeAt(at) === first && stop.startsWith(text.slice(at))) longest = text.length - at;
      }
    }
    return longest;
  }
}
