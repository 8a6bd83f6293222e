// FindTimes: how long a tier takes to say what others have stored there, and whether it owes an answer that no request
// waits for any more. Until such an answer comes, the tier is not asked, but for one request in some.

/** Of so many of the latest answers the time is known. */
const latest = 8;
/** After so many requests that did not ask, one does. */
const askAfter = 64;
/** Answers that are owed at most. */
const mostOwed = 2;

export class FindTimes {
  readonly #latestMs: number[] = [];
  #owed = 0;
  #passedBy = 0;

  /** How long the fastest of the latest answers took; undefined: there was none. */
  get leastMs(): number | undefined {
    return this.#latestMs.length === 0 ? undefined : Math.min(...this.#latestMs);
  }

  /** An answer took so long. */
  answered(milliseconds: number): void {
    if (this.#latestMs.push(milliseconds) > latest) this.#latestMs.shift();
  }

  /** No request waits for an answer any more. Returns what is called when it has come. */
  owes(): () => void {
    this.#owed += 1;
    return () => { this.#owed -= 1; };
  }

  /** Whether a request leaves the tier alone, since it owes an answer. */
  passesBy(): boolean {
    if (this.#owed === 0) return false;
    this.#passedBy += 1;
    if (this.#passedBy < askAfter || this.#owed >= mostOwed) return true;
    this.#passedBy = 0;
    return false;
  }
}
