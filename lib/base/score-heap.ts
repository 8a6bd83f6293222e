// ScoreHeap: extents by their scores, the lowest on top: a binary min-heap in which an extent's score may change. Equal
// scores rank by a second number, then by the extent's own, so that a heap's top is that of a full sort. Pure.

export class ScoreHeap {
  readonly #extents: number[] = [];
  readonly #scores: number[] = [];
  readonly #ties: number[] = [];
  /** By extent, its place. */
  readonly #places = new Map<number, number>();

  /** Extents in it. */
  get size(): number {
    return this.#extents.length;
  }

  has(extent: number): boolean {
    return this.#places.has(extent);
  }

  /** The extent with the lowest score; undefined: none. */
  get top(): number | undefined {
    return this.#extents[0];
  }

  /** Of an extent that is in it. */
  scoreOf(extent: number): number | undefined {
    const place = this.#places.get(extent);
    return place === undefined ? undefined : this.#scores[place];
  }

  /** Adds an extent, or changes its score. Of equal scores the lower `tie` is nearer the top. */
  set(extent: number, score: number, tie = 0): void {
    let place = this.#places.get(extent);
    if (place === undefined) {
      place = this.#extents.length;
      this.#extents.push(extent);
      this.#scores.push(score);
      this.#ties.push(tie);
      this.#places.set(extent, place);
    }
    this.#scores[place] = score;
    this.#ties[place] = tie;
    this.#sink(this.#rise(place));
  }

  /** Takes an extent out, where it is in. */
  delete(extent: number): boolean {
    const place = this.#places.get(extent);
    if (place === undefined) return false;
    const last = this.#extents.length - 1;
    this.#swap(place, last);
    this.#extents.pop();
    this.#scores.pop();
    this.#ties.pop();
    this.#places.delete(extent);
    if (place < last) this.#sink(this.#rise(place));
    return true;
  }

  #isBelow(a: number, b: number): boolean {
    const difference = this.#scores[a]! - this.#scores[b]! || this.#ties[a]! - this.#ties[b]!;
    return difference < 0 || (difference === 0 && this.#extents[a]! < this.#extents[b]!);
  }

  #swap(a: number, b: number): void {
    const [extent, score, tie] = [this.#extents[a]!, this.#scores[a]!, this.#ties[a]!];
    this.#extents[a] = this.#extents[b]!;
    this.#scores[a] = this.#scores[b]!;
    this.#ties[a] = this.#ties[b]!;
    this.#extents[b] = extent;
    this.#scores[b] = score;
    this.#ties[b] = tie;
    this.#places.set(this.#extents[a]!, a);
    this.#places.set(this.#extents[b]!, b);
  }

  #rise(place: number): number {
    let at = place;
    while (at > 0 && this.#isBelow(at, (at - 1) >> 1)) {
      this.#swap(at, (at - 1) >> 1);
      at = (at - 1) >> 1;
    }
    return at;
  }

  #sink(place: number): void {
    for (let at = place; ;) {
      const [left, right] = [2 * at + 1, 2 * at + 2];
      let least = at;
      if (left < this.size && this.#isBelow(left, least)) least = left;
      if (right < this.size && this.#isBelow(right, least)) least = right;
      if (least === at) return;
      this.#swap(at, least);
      at = least;
    }
  }
}
