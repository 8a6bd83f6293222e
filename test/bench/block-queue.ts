// BlockQueue: blocks by when they are needed next, the latest first: a binary heap.

export interface QueuedBlock {
  readonly block: number;
  readonly nextUse: number;
}

export class BlockQueue {
  readonly #heap: QueuedBlock[] = [];

  push(block: number, nextUse: number): void {
    const heap = this.#heap;
    let at = heap.length;
    for (let above = (at - 1) >> 1; at > 0 && heap[above]!.nextUse < nextUse; above = (at - 1) >> 1) {
      heap[at] = heap[above]!;
      at = above;
    }
    heap[at] = { block, nextUse };
  }

  /** Takes out the block that is needed last; there is one. */
  pop(): QueuedBlock {
    const heap = this.#heap;
    const first = heap[0]!;
    const moved = heap.pop()!;
    if (heap.length === 0) return first;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below + 1 < heap.length && heap[below + 1]!.nextUse > heap[below]!.nextUse) below += 1;
      if (below >= heap.length || heap[below]!.nextUse <= moved.nextUse) break;
      heap[at] = heap[below]!;
      at = below;
    }
    heap[at] = moved;
    return first;
  }
}
