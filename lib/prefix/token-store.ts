// TokenStore: the tokens of every node, as runs. A run is a piece of text in a chain of pages taken from a few arrays,
// so that comparing is a straight loop, nothing is left to the garbage collector, and cutting a run in two copies
// nothing: both halves then share the page where they meet. Tokens stay where they are when the store grows, however
// many there are.
//
// Invariants: the users of a page are the runs that have tokens in it, which were one run and were cut apart there; a
// run is lengthened only when no other run lies behind its end in its last page.

import { enlarged } from '../base/typed-arrays.js';

const pageTokens = 128;
const pageShift = 7;
const pageMask = pageTokens - 1;
/** Pages of one array: 128 KiB. */
const chunkPages = 256;
const chunkShift = 8;
const chunkMask = chunkPages - 1;

export class TokenStore {
  // By page.
  readonly #chunks: Int32Array[] = [];
  #next = new Int32Array(0);
  #previous = new Int32Array(0);
  #users = new Uint8Array(0);
  #freePage = -1;
  #usedPages = 0;
  // By run.
  #firstPage = new Int32Array(0);
  #lastPage = new Int32Array(0);
  /** Where the run starts in its first page. */
  #offset = new Uint8Array(0);
  #length = new Int32Array(0);

  /** Makes an empty run of this number. */
  open(run: number): void {
    if (run >= this.#length.length) this.#growRuns(run + 1);
    this.#firstPage[run] = -1;
    this.#lastPage[run] = -1;
    this.#offset[run] = 0;
    this.#length[run] = 0;
  }

  length(run: number): number {
    return this.#length[run]!;
  }

  /** The token at `at`, which must be inside the run. Walks the pages: for single look-ups. */
  tokenAt(run: number, at: number): number {
    const place = this.#offset[run]! + at;
    const page = this.#pageOf(run, place);
    return this.#chunkOf(page)[startOf(page) + (place & pageMask)]!;
  }

  /** Appends `count` tokens of `source` from `start`, or none: where memory is refused. */
  append(run: number, source: Int32Array, start: number, count: number): void {
    let end = this.#offset[run]! + this.#length[run]!;
    const room = -end & pageMask; // of the last page
    if (count > room) this.#fit(Math.ceil((count - room) / pageTokens));
    let page = this.#lastPage[run]!;
    for (let copied = 0; copied < count;) {
      const place = end & pageMask;
      if (page < 0 || place === 0) page = this.#addPage(run, page);
      const piece = Math.min(count - copied, pageTokens - place);
      const tokens = this.#chunkOf(page);
      const to = startOf(page) + place;
      if (piece > 16) tokens.set(source.subarray(start + copied, start + copied + piece), to);
      else for (let index = 0; index < piece; index += 1) tokens[to + index] = source[start + copied + index]!;
      copied += piece;
      end += piece;
    }
    this.#length[run]! += count;
  }

  /**
   * How many of the tokens of `source` in [start, start + count) equal the run's from `at`, until the first that does
   * not.
   */
  agree(run: number, at: number, source: Int32Array, start: number, count: number): number {
    const limit = Math.min(count, this.#length[run]! - at);
    let place = this.#offset[run]! + at;
    let page = this.#pageOf(run, place);
    for (let agreed = 0; agreed < limit;) {
      const piece = Math.min(limit - agreed, pageTokens - (place & pageMask));
      const tokens = this.#chunkOf(page);
      const from = startOf(page) + (place & pageMask);
      const other = start + agreed;
      for (let index = 0; index < piece; index += 1) {
        if (tokens[from + index] !== source[other + index]) return agreed + index;
      }
      agreed += piece;
      place += piece;
      page = this.#next[page]!;
    }
    return limit;
  }

  /** Copies [from, to) of the run into `target` at `start`. */
  copy(run: number, from: number, to: number, target: Int32Array, start: number): void {
    let place = this.#offset[run]! + from;
    let page = from < to ? this.#pageOf(run, place) : -1;
    for (let copied = 0; copied < to - from;) {
      const piece = Math.min(to - from - copied, pageTokens - (place & pageMask));
      const tokens = this.#chunkOf(page);
      const at = startOf(page) + (place & pageMask);
      if (piece > 16) target.set(tokens.subarray(at, at + piece), start + copied);
      else for (let index = 0; index < piece; index += 1) target[start + copied + index] = tokens[at + index]!;
      copied += piece;
      place += piece;
      page = this.#next[page]!;
    }
  }

  /** Calls `visit` with each piece of the run: an array that must not be kept, and the places [from, to) in it. */
  forPieces(run: number, visit: (tokens: Int32Array, from: number, to: number) => void): void {
    let place = this.#offset[run]!;
    const end = place + this.#length[run]!;
    for (let page = this.#firstPage[run]!; place < end; page = this.#next[page]!) {
      const piece = Math.min(end - place, pageTokens - (place & pageMask));
      const from = startOf(page) + (place & pageMask);
      visit(this.#chunkOf(page), from, from + piece);
      place += piece;
    }
  }

  /**
   * Cuts the first `tokens` off `lower` into `upper`, a new run; 0 < tokens < its length. Returns the token that
   * `lower` starts with then.
   */
  split(upper: number, lower: number, tokens: number): number {
    this.open(upper);
    const place = this.#offset[lower]! + tokens;
    const last = this.#pageOf(lower, place - 1);
    this.#firstPage[upper] = this.#firstPage[lower]!;
    this.#offset[upper] = this.#offset[lower]!;
    this.#lastPage[upper] = last;
    this.#length[upper] = tokens;
    const isInside = (place & pageMask) !== 0;
    this.#firstPage[lower] = isInside ? last : this.#next[last]!;
    this.#offset[lower] = place & pageMask;
    this.#length[lower]! -= tokens;
    if (isInside) this.#users[last]! += 1;
    return this.tokenAt(lower, 0);
  }

  /**
   * Puts all of `upper` in front of `lower` and closes `upper`. Nothing else may lie behind `upper`. Copies only when
   * they do not touch; where memory for that is refused, nothing has changed.
   */
  join(upper: number, lower: number): void {
    const end = this.#offset[upper]! + this.#length[upper]!;
    const last = this.#lastPage[upper]!;
    const first = this.#firstPage[lower]!;
    const isInside = (end & pageMask) !== 0;
    const touches = isInside
      ? first === last && this.#offset[lower] === (end & pageMask)
      : this.#next[last] === first && this.#previous[first] === last && this.#offset[lower] === 0;
    if (touches) {
      if (isInside) this.#users[last]! -= 1;
      this.#firstPage[lower] = this.#firstPage[upper]!;
      this.#offset[lower] = this.#offset[upper]!;
      this.#length[lower]! += this.#length[upper]!;
      return;
    }
    const tail = new Int32Array(this.#length[lower]!);
    this.copy(lower, 0, tail.length, tail, 0);
    this.append(upper, tail, 0, tail.length);
    this.close(lower);
    this.#firstPage[lower] = this.#firstPage[upper]!;
    this.#lastPage[lower] = this.#lastPage[upper]!;
    this.#offset[lower] = this.#offset[upper]!;
    this.#length[lower] = this.#length[upper]!;
  }

  /** Drops what lies behind the first `tokens` tokens; at least one stays. */
  trim(run: number, tokens: number): void {
    const first = this.#firstPage[run]!;
    const offset = this.#offset[run]!;
    let pages = (offset + this.#length[run]! - 1) >> pageShift;
    const kept = (offset + tokens - 1) >> pageShift;
    let page = this.#lastPage[run]!;
    for (; pages > kept; pages -= 1) {
      const before = page === first ? -1 : this.#previous[page]!;
      this.#leavePage(page);
      page = before;
    }
    this.#lastPage[run] = page;
    this.#length[run] = tokens;
  }

  /** Gives the run's pages back. */
  close(run: number): void {
    const first = this.#firstPage[run]!;
    for (let page = this.#lastPage[run]!; page >= 0;) {
      const before = page === first ? -1 : this.#previous[page]!;
      this.#leavePage(page);
      page = before;
    }
    this.open(run);
  }

  /** Pages in use: 0 when every run is closed. */
  get usedPages(): number {
    return this.#usedPages;
  }

  /** The page that holds a place, counted from the start of the run's first page. */
  #pageOf(run: number, place: number): number {
    const end = this.#offset[run]! + this.#length[run]! - 1;
    const hops = place >> pageShift;
    const hopsBack = (end >> pageShift) - hops;
    if (hopsBack < hops) {
      let page = this.#lastPage[run]!;
      for (let hop = 0; hop < hopsBack; hop += 1) page = this.#previous[page]!;
      return page;
    }
    let page = this.#firstPage[run]!;
    for (let hop = 0; hop < hops; hop += 1) page = this.#next[page]!;
    return page;
  }

  /** Sees that so many pages are free, and there. */
  #fit(pages: number): void {
    let page = this.#freePage;
    for (let left = pages; left > 0; left -= 1) {
      if (page < 0) {
        this.#growPages();
        this.#fit(pages);
        return;
      }
      this.#chunks[page >> chunkShift] ??= new Int32Array(chunkPages * pageTokens);
      page = this.#next[page]!;
    }
  }

  /** Takes a free page, for which there was `#fit`. */
  #addPage(run: number, last: number): number {
    const page = this.#freePage;
    this.#freePage = this.#next[page]!;
    this.#usedPages += 1;
    this.#users[page] = 1;
    this.#next[page] = -1;
    this.#previous[page] = last;
    if (last < 0) this.#firstPage[run] = page;
    else this.#next[last] = page;
    this.#lastPage[run] = page;
    return page;
  }

  #leavePage(page: number): void {
    this.#users[page]! -= 1;
    if (this.#users[page] !== 0) return;
    this.#next[page] = this.#freePage;
    this.#freePage = page;
    this.#usedPages -= 1;
  }

  #growPages(): void {
    const before = this.#next.length;
    const pages = Math.max(chunkPages, 2 * before);
    this.#previous = enlarged(this.#previous, pages);
    this.#users = enlarged(this.#users, pages);
    this.#next = enlarged(this.#next, pages); // last: its length says how many there are
    for (let page = pages - 1; page >= before; page -= 1) {
      this.#next[page] = this.#freePage;
      this.#freePage = page;
    }
  }

  #chunkOf(page: number): Int32Array {
    return this.#chunks[page >> chunkShift]!;
  }

  #growRuns(runs: number): void {
    const capacity = Math.max(64, runs, 2 * this.#length.length);
    this.#firstPage = enlarged(this.#firstPage, capacity);
    this.#lastPage = enlarged(this.#lastPage, capacity);
    this.#offset = enlarged(this.#offset, capacity);
    this.#length = enlarged(this.#length, capacity);
  }
}

/** Where a page begins in its chunk. */
function startOf(page: number): number {
  return (page & chunkMask) << pageShift;
}
