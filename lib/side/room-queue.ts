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
