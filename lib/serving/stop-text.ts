// StopText: ends a text at the first stop string in it, wherever pieces of it begin and end. Text that may be the beginning of a stop
// string is held back until that is known. Of several stop strings the one counts that ends first; of these the one that began first.

/** Ends a text, which comes in pieces, at the first of its stop strings. For one answer. */
export class StopText {
  readonly #stops: readonly string[];
  #held = '';
  #stopString: string | undefined;

  /** `stops`: none of them empty. */
  constructor(stops: readonly string[]) {
    this.#stops = stops;
  }

  /** The stop string that came; nothing is returned from then on. */
  get stopString(): string | undefined {
    return this.#stopString;
  }

  /** Takes the next piece; returns the text before a stop string that surely belongs to the answer. */
  push(piece: string): string {
    if (this.#stopString !== undefined) return '';
    const text = this.#held + piece;
    let [end, start] = [Infinity, Infinity];
    for (const stop of this.#stops) {
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
      for (let length = Math.min(stop.length - 1, text.length); length > longest; length -= 1) {
        if (!text.endsWith(stop.slice(0, length))) continue;
        longest = length;
        break;
      }
    }
    return longest;
  }
}
