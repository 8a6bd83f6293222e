// EncoderRoom: the bytes of an EncoderCache. It counts items within the budget, and evicts those without a hold, the
// least recently used first, when room is needed and never before.
//
// Invariants: pinned bytes (held, or being computed) + unheld bytes = used bytes. Used bytes exceed the budget only by
// pinned ones, after the budget was lowered.

/** What the room keeps of an item. */
interface RoomItem {
  /** Of its rows; undefined where their number is not known yet. */
  readonly bytes: number | undefined;
  /** Bytes counted within the budget: 0 where its size is not known yet, or is more than the whole budget. */
  countedBytes: number;
  /** Whether its rows are more than the whole budget, and counted outside it. */
  isOutside: boolean;
}

export class EncoderRoom<Item extends RoomItem> {
  /** Items with more bytes than the whole budget are counted here instead. */
  outsideBytes = 0;
  evictions = 0;
  evictedBytes = 0;
  #budgetBytes: number;
  #usedBytes = 0;
  #unheldBytes = 0;
  /** In the order of their last use. */
  readonly #unheld = new Set<Item>();
  readonly #evicted: (item: Item) => void;

  /** `evicted` is told of each item that is evicted; it must only forget it. */
  constructor(budgetBytes: number, evicted: (item: Item) => void) {
    this.#budgetBytes = budgetBytes;
    this.#evicted = evicted;
  }

  get budgetBytes(): number {
    return this.#budgetBytes;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /** Bytes that cannot be had now. */
  get pinnedBytes(): number {
    return this.#usedBytes - this.#unheldBytes;
  }

  /** Whether so many bytes can be had now. */
  hasRoomFor(bytes: number): boolean {
    return this.pinnedBytes + bytes <= this.#budgetBytes;
  }

  /** Counts an item's bytes, pinned; evicts for them. The room must be there. */
  take(item: Item, bytes: number): void {
    this.#evictTo(this.#budgetBytes - bytes);
    item.countedBytes = bytes;
    this.#usedBytes += bytes;
  }

  /** Counts an item's bytes outside the budget, for as long as it is held. */
  takeOutside(item: Item): void {
    item.isOutside = true;
    this.outsideBytes += item.bytes!;
  }

  /** The item is held: it is not evicted from now on. */
  pin(item: Item): void {
    if (this.#unheld.delete(item)) this.#unheldBytes -= item.countedBytes;
  }

  /** The last hold was released: the item may be evicted from now on. */
  unpin(item: Item): void {
    this.#unheld.add(item);
    this.#unheldBytes += item.countedBytes;
    this.#evictTo(this.#budgetBytes);
  }

  /** The item's rows are gone, or will be with the last hold of them: its bytes are free. */
  giveBack(item: Item): void {
    this.pin(item);
    this.#usedBytes -= item.countedBytes;
    item.countedBytes = 0;
    if (item.isOutside) this.outsideBytes -= item.bytes!;
    item.isOutside = false;
  }

  setBudget(budgetBytes: number): void {
    this.#budgetBytes = budgetBytes;
    this.#evictTo(budgetBytes);
  }

  clear(): void {
    this.#unheld.clear();
    this.#unheldBytes = 0;
    this.#usedBytes = 0;
    this.outsideBytes = 0;
  }

  #evictTo(bytes: number): void {
    for (const item of this.#unheld) {
      if (this.#usedBytes <= bytes) return;
      this.evictions += 1;
      this.evictedBytes += item.countedBytes;
      this.giveBack(item);
      this.#evicted(item);
    }
  }
}

// RoomQueue: what waits for room in an EncoderCache, in the order in which the requests arrived. Only the first is ever
// served, so none starves: neither behind smaller ones, nor, for long, behind requests for rows that are there and need
// no room.

/** Something that waits for room. */
export interface RoomTicket {
  /** Its place: arrival of its request. */
  readonly number: number;
  /** Whether there is room for it now. Changes nothing. */
  isReady(): boolean;
  /** Takes the room; called once, when it has left the queue. */
  serve(): void;
}

/**
 * Requests for rows that are there which may be served before the first of the queue, which may need the room that they
 * keep.
 */
export const mostOvertakes = 32;

export class RoomQueue {
  readonly #tickets: RoomTicket[] = [];
  /** Requests that were served before the first of the queue since it was the first. */
  #overtakes = 0;
  #isServing = false;

  get length(): number {
    return this.#tickets.length;
  }

  /** Whether a request that needs no room may be served at once. Counts it as one that was. */
  overtake(): boolean {
    if (this.#tickets.length === 0) return true;
    if (this.#overtakes >= mostOvertakes) return false;
    this.#overtakes += 1;
    return true;
  }

  insert(ticket: RoomTicket): void {
    let at = this.#tickets.length;
    while (at > 0 && this.#tickets[at - 1]!.number > ticket.number) at -= 1;
    if (at === 0) this.#overtakes = 0;
    this.#tickets.splice(at, 0, ticket);
  }

  /** Does nothing where it is not in the queue. */
  remove(ticket: RoomTicket): void {
    const at = this.#tickets.indexOf(ticket);
    if (at < 0) return;
    this.#tickets.splice(at, 1);
    if (at === 0) this.#overtakes = 0;
  }

  /**
   * Serves the first as long as there is room for it. A call from within `serve` of a ticket leaves that to the call
   * that runs.
   */
  serve(): void {
    if (this.#isServing) return;
    this.#isServing = true;
    try {
      for (let first = this.#tickets[0]; first?.isReady(); first = this.#tickets[0]) {
        this.remove(first);
        first.serve();
      }
    } finally {
      this.#isServing = false;
    }
  }

  clear(): void {
    this.#tickets.length = 0;
    this.#overtakes = 0;
  }
}
