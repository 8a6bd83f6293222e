// EncoderModel: what an EncoderCache must do when its encoders answer at once, said as plainly as possible: lists, searched from the
// start. Sizes are rows.

import { mostOvertakes } from '#internal/side/encoder-room.js';

interface Item {
  readonly name: string;
  readonly tokens: number;
  /** Requests that hold it. */
  readonly holders: number[];
  isFindable: boolean;
}

/** One place in the queue: of an item, with all that wait for it, or of one request for rows that were there. */
interface Place {
  readonly number: number;
  readonly name: string;
  readonly tokens: number;
  readonly requests: number[];
  readonly isForItem: boolean;
}

export class EncoderModel {
  /** How requests ended since this was cleared last. */
  readonly ends = new Map<number, string>();
  evictions = 0;
  /** Requests for rows that were there which had to wait. */
  overtaken = 0;
  #budget: number;
  /** Least recently used first. */
  #items: Item[] = [];
  #queue: Place[] = [];
  #first: Place | undefined;
  #overtakes = 0;

  constructor(budget: number) {
    this.#budget = budget;
  }

  get used(): number {
    return this.#items.reduce((sum, { tokens }) => sum + tokens, 0);
  }

  get held(): number {
    return this.#items.reduce((sum, { tokens, holders }) => sum + (holders.length > 0 ? tokens : 0), 0);
  }

  waiting(): number[] {
    return this.#queue.flatMap(({ requests }) => requests);
  }

  find(name: string): Item | undefined {
    return this.#items.find((item) => item.isFindable && item.name === name);
  }

  ask(number: number, name: string, tokens: number, isPatient: boolean, isInTurn = false): void {
    const item = this.find(name);
    const place = this.#queue.find((one) => one.isForItem && one.name === name);
    if (item !== undefined) {
      if (this.#queue.length > 0 && !isInTurn) this.#overtakes += 1;
      if (isInTurn || this.#overtakes <= mostOvertakes) return this.#hold(item, number);
      this.overtaken += 1;
      if (!isPatient) this.ends.set(number, 'KV_ENCODER_FULL');
      else this.#wait({ number, name, tokens, requests: [number], isForItem: false });
    } else if (place !== undefined) {
      if (isPatient) place.requests.push(number);
      else this.ends.set(number, 'KV_ENCODER_FULL');
    } else if (tokens > this.#budget) {
      this.ends.set(number, 'KV_ITEM_TOO_LARGE');
    } else if (!isPatient && (this.#queue.length > 0 || !this.#hasRoom(tokens))) {
      this.ends.set(number, 'KV_ENCODER_FULL');
    } else {
      this.#wait({ number, name, tokens, requests: [number], isForItem: true });
      if (!isInTurn) this.#serve();
    }
  }

  release(number: number): void {
    const item = this.#items.find(({ holders }) => holders.includes(number))!;
    item.holders.splice(item.holders.indexOf(number), 1);
    if (item.holders.length === 0) {
      this.#items = this.#items.filter((one) => one !== item);
      if (item.isFindable) this.#items.push(item);
      this.#evict(0);
    }
    this.#serve();
  }

  abort(number: number): void {
    const place = this.#queue.find(({ requests }) => requests.includes(number))!;
    place.requests.splice(place.requests.indexOf(number), 1);
    this.ends.set(number, 'KV_ABORTED');
    if (place.requests.length === 0) this.#leave(place);
    this.#serve();
  }

  setBudget(budget: number): void {
    this.#budget = budget;
    this.#evict(0);
    for (const place of this.#queue.filter(({ isForItem, tokens }) => isForItem && tokens > budget)) {
      for (const request of place.requests) this.ends.set(request, 'KV_ITEM_TOO_LARGE');
      this.#leave(place);
    }
    this.#serve();
  }

  clear(): void {
    this.#items = this.#items.filter(({ holders }) => holders.length > 0);
    for (const item of this.#items) item.isFindable = false;
    this.#serve();
  }

  #hold(item: Item, number: number): void {
    item.holders.push(number);
    this.ends.set(number, 'held');
  }

  #wait(place: Place): void {
    this.#queue.push(place);
    this.#queue.sort((a, b) => a.number - b.number);
    this.#notice();
  }

  #leave(place: Place): void {
    this.#queue = this.#queue.filter((one) => one !== place);
    this.#notice();
  }

  /** Another first is overtaken from none on. */
  #notice(): void {
    if (this.#first !== this.#queue[0]) this.#overtakes = 0;
    this.#first = this.#queue[0];
  }

  #hasRoom(tokens: number): boolean {
    return this.held + tokens <= this.#budget;
  }

  #serve(): void {
    for (let place = this.#queue[0]; place !== undefined && (!place.isForItem || this.#hasRoom(place.tokens)); place = this.#queue[0]) {
      this.#leave(place);
      if (!place.isForItem) {
        this.ask(place.number, place.name, place.tokens, true, true);
        continue;
      }
      this.#evict(place.tokens);
      const item = { name: place.name, tokens: place.tokens, holders: [], isFindable: true };
      this.#items.push(item);
      for (const request of place.requests) this.#hold(item, request);
    }
  }

  #evict(tokens: number): void {
    for (const item of this.#items.filter(({ holders }) => holders.length === 0)) {
      if (this.used + tokens <= this.#budget) return;
      this.#items = this.#items.filter((one) => one !== item);
      this.evictions += 1;
    }
  }
}
