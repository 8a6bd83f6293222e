// EncoderItems: the life of an EncoderCache's items, from the first request for one to its eviction: which requests
// join, which encoder runs, which requests wait for room, and when each is answered. No caller's code runs inside its
// calls: encoders start in a microtask of their own, and a caller's listeners of an abort are called last.

import { createError } from '../base/errors.js';
import { domainParts, type PrefixDomainParts } from '../prefix/domain.js';
import { EncoderHold, type HoldOwner } from './encoder-hold.js';
import { copyComputedRows, EncoderItem, type ComputedRows } from './encoder-item.js';
import type { ReadAcquireOptions } from './encoder-options.js';
import { EncoderRequest } from './encoder-request.js';
import { EncoderRoom } from './encoder-room.js';
import { RoomQueue, type RoomTicket } from './room-queue.js';

/** What has happened since the cache was made. */
export interface EncoderEvents {
  hits: number;
  joins: number;
  misses: number;
  waits: number;
  computations: number;
  failures: number;
  computedBytes: number;
}

export class EncoderItems implements HoldOwner {
  readonly events: EncoderEvents =
    { hits: 0, joins: 0, misses: 0, waits: 0, computations: 0, failures: 0, computedBytes: 0 };
  readonly room: EncoderRoom;
  readonly queue = new RoomQueue();
  /** Requests that were not answered. */
  readonly requests = new Set<EncoderRequest>();
  /** All items, also those that no later request is given. */
  readonly items = new Set<EncoderItem>();
  readonly #findable = new Map<string, EncoderItem>();
  readonly #tickets = new Map<EncoderItem, RoomTicket>();
  /** By item: requests that wait for it, in the order of arrival. The first has it computed. */
  readonly #waiting = new WeakMap<EncoderItem, Set<EncoderRequest>>();
  #arrivals = 0;

  constructor(budgetBytes: number) {
    this.room = new EncoderRoom(budgetBytes, (item) => this.#remove(item));
  }

  /**
   * The item of a key whose rows are there or on their way. One whose rows a caller has transferred elsewhere is gone.
   */
  find(key: string): EncoderItem | undefined {
    const item = this.#findable.get(key);
    if (item?.rows === undefined || item.rows.length > 0) return item;
    this.#forget(item);
    return undefined;
  }

  /** Resolves with a hold on the rows. Rejects as `EncoderCache.acquire`. */
  acquire(given: ReadAcquireOptions): Promise<EncoderHold> {
    const request = new EncoderRequest(given, this.#arrivals);
    this.#arrivals += 1;
    const found = this.find(given.key);
    this.events[found === undefined ? 'misses' : found.state === 'stored' ? 'hits' : 'joins'] += 1;
    this.requests.add(request);
    request.watch((error) => this.#giveUp(request, error));
    this.#dispatch(request, false);
    if (this.requests.has(request) && request.item?.state !== 'computing') this.events.waits += 1;
    return request.answer;
  }

  release(item: EncoderItem): void {
    if (!this.items.has(item)) return; // closed
    item.holds -= 1;
    if (item.holds === 0) this.#letGo(item);
    this.queue.serve();
  }

  setBudget(budgetBytes: number): void {
    this.room.setBudget(budgetBytes);
    for (const item of [...this.items]) {
      if (item.state !== 'queued' || (item.bytes ?? 0) <= budgetBytes) continue;
      if (item.rows === undefined) this.#fail(item, tooLarge(item, budgetBytes));
      else this.#storeOutside(item);
    }
    this.queue.serve();
  }

  /**
   * No later request is given the items of a domain that are there or being computed, of all or these hashes; those
   * without a hold are dropped.
   */
  clear(parts: PrefixDomainParts, hashes?: readonly string[]): void {
    for (const item of [...this.#findable.values()]) {
      if (item.state === 'queued' && item.rows === undefined) continue; // not computed yet
      if (hashes?.some((hash) => item.hash === `s${hash}`) === false) continue;
      if (domainParts.every((part) => parts[part] === undefined || parts[part] === item.domain[part])) {
        this.#forget(item);
      }
    }
    this.queue.serve();
  }

  /** Rejects all requests with the error that `errorOf` makes, and drops everything. */
  close(errorOf: () => Error): void {
    const requests = [...this.requests];
    const computations = [...this.items].map((item) => endComputation(item));
    this.requests.clear();
    this.items.clear();
    this.#findable.clear();
    this.#tickets.clear();
    this.queue.clear();
    this.room.clear();
    for (const request of requests) request.reject(errorOf());
    for (const computation of computations) computation?.abort(errorOf());
  }

  /** Gives the request the item of its name, or a place where it waits. `isInTurn`: it was the first of the queue. */
  #dispatch(request: EncoderRequest, isInTurn: boolean): void {
    const { key, tokens, whenFull } = request.given;
    const item = this.find(key);
    if (item === undefined) {
      this.#open(request);
    } else if (disagrees(tokens, item.tokens)) {
      this.#answer(request).reject(wrongTokens(tokens!, item.tokens!));
    } else if (item.state === 'queued' ? whenFull === 'wait' : isInTurn || this.queue.overtake()) {
      this.#join(request, item);
    } else if (whenFull === 'refuse') {
      this.#answer(request).reject(this.#full(request));
    } else {
      request.ticket = { number: request.number, isReady: () => true, serve: () => this.#dispatch(request, true) };
      this.queue.insert(request.ticket);
    }
  }

  #join(request: EncoderRequest, item: EncoderItem): void {
    request.ticket = undefined;
    if (item.state === 'stored') return this.#give(request, item);
    request.item = item;
    this.#requestsOf(item).add(request);
  }

  /** Makes the item, for its first request. */
  #open(request: EncoderRequest): void {
    const { given, number } = request;
    const item = new EncoderItem(given, number, given.tokens);
    const { budgetBytes } = this.room;
    if ((item.bytes ?? 0) > budgetBytes) return this.#answer(request).reject(tooLarge(item, budgetBytes));
    const mustWait = this.queue.length > 0 || !this.#canServe(item);
    if (mustWait && given.whenFull === 'refuse') return this.#answer(request).reject(this.#full(request));
    this.items.add(item);
    this.#findable.set(item.key, item);
    this.#join(request, item);
    this.#enqueue(item);
  }

  #enqueue(item: EncoderItem): void {
    const ticket = {
      number: item.number,
      isReady: () => this.#canServe(item),
      serve: () => {
        this.#tickets.delete(item);
        if (item.bytes !== undefined) this.room.take(item, item.bytes);
        if (item.rows === undefined) this.#start(item);
        else this.#store(item);
      },
    };
    item.state = 'queued';
    this.#tickets.set(item, ticket);
    this.queue.insert(ticket);
    this.queue.serve();
  }

  /**
   * Whether the item's next step has room. Where its size is not known, one row must have it, as far as the budget
   * allows one.
   */
  #canServe({ bytes, kind }: EncoderItem): boolean {
    return this.room.hasRoomFor(bytes ?? Math.min(kind.rowBytes, this.room.budgetBytes));
  }

  #start(item: EncoderItem): void {
    const computation = new AbortController();
    item.state = 'computing';
    item.computation = computation;
    queueMicrotask(() => void this.#compute(item, computation));
  }

  /**
   * Runs the encoder of the first request, then of the next as long as the one whose encoder failed had given up
   * before.
   */
  async #compute(item: EncoderItem, computation: AbortController): Promise<void> {
    while (item.computation === computation) {
      const [request] = this.#requestsOf(item);
      const { compute } = request!.given;
      this.events.computations += 1;
      const outcome = await computedBy(compute, item, computation.signal);
      if (item.computation !== computation) return; // all its requests have given up
      if (!('error' in outcome)) return this.#finish(item, outcome);
      this.events.failures += 1;
      if (!this.#requestsOf(item).has(request!)) continue;
      this.#fail(item, outcome.error);
      this.queue.serve();
    }
  }

  #finish(item: EncoderItem, { rows, tokens }: ComputedRows): void {
    item.computation = undefined;
    item.rows = rows;
    item.tokens = tokens;
    this.events.computedBytes += item.bytes!;
    for (const request of [...this.#requestsOf(item)]) {
      if (!disagrees(request.given.tokens, tokens)) continue;
      this.#requestsOf(item).delete(request);
      this.#answer(request).reject(wrongTokens(request.given.tokens!, tokens));
    }
    if (item.countedBytes > 0) return this.#store(item);
    if (item.bytes! > this.room.budgetBytes) return this.#storeOutside(item);
    this.#enqueue(item);
    if (!this.#tickets.has(item)) return;
    for (const request of [...this.#requestsOf(item)]) {
      if (request.given.whenFull === 'refuse') this.#giveUp(request, this.#full(request));
      else this.events.waits += 1;
    }
  }

  #store(item: EncoderItem): void {
    item.state = 'stored';
    item.holds += 1; // until all are told
    for (const request of this.#requestsOf(item)) this.#give(request, item);
    this.#requestsOf(item).clear();
    this.release(item);
  }

  /** Stores rows that are more than the whole budget, for as long as they are held. */
  #storeOutside(item: EncoderItem): void {
    this.#leaveQueue(item);
    this.room.takeOutside(item);
    this.#store(item);
  }

  #give(request: EncoderRequest, item: EncoderItem): void {
    this.room.pin(item);
    item.holds += 1;
    this.#answer(request).resolve(new EncoderHold(this, item));
  }

  /** The last hold of the item was released. */
  #letGo(item: EncoderItem): void {
    if (item.isFindable && !item.isOutside) return this.room.unpin(item);
    this.room.giveBack(item);
    this.#remove(item);
  }

  #forget(item: EncoderItem): void {
    if (this.#findable.get(item.key) === item) this.#findable.delete(item.key);
    item.isFindable = false;
    if (item.state === 'stored' && item.holds === 0) this.#letGo(item);
  }

  #giveUp(request: EncoderRequest, error: Error): void {
    if (!this.requests.has(request)) return;
    const { item, ticket } = request;
    this.#answer(request).reject(error);
    if (ticket !== undefined) this.queue.remove(ticket);
    let computation: AbortController | undefined;
    if (item !== undefined) {
      this.#requestsOf(item).delete(request);
      if (this.#requestsOf(item).size === 0) computation = this.#abandon(item);
    }
    this.queue.serve();
    computation?.abort(error);
  }

  /** Ends all requests for an item that was not stored with an error. */
  #fail(item: EncoderItem, error: unknown): void {
    for (const request of this.#requestsOf(item)) this.#answer(request).reject(error);
    this.#requestsOf(item).clear();
    this.#abandon(item);
  }

  /** Drops an item that was not stored. Returns its computation, to be aborted. */
  #abandon(item: EncoderItem): AbortController | undefined {
    this.#leaveQueue(item);
    this.room.giveBack(item);
    this.#remove(item);
    return endComputation(item);
  }

  #leaveQueue(item: EncoderItem): void {
    const ticket = this.#tickets.get(item);
    if (ticket !== undefined) this.queue.remove(ticket);
    this.#tickets.delete(item);
  }

  #remove(item: EncoderItem): void {
    this.items.delete(item);
    if (this.#findable.get(item.key) === item) this.#findable.delete(item.key);
  }

  #requestsOf(item: EncoderItem): Set<EncoderRequest> {
    let requests = this.#waiting.get(item);
    if (requests === undefined) this.#waiting.set(item, requests = new Set());
    return requests;
  }

  /** The request, which gets its answer now. */
  #answer(request: EncoderRequest): EncoderRequest {
    this.requests.delete(request);
    return request;
  }

  #full({ given: { kind, tokens } }: EncoderRequest): Error {
    const { pinnedBytes, budgetBytes } = this.room;
    const neededBytes = tokens === undefined ? undefined : tokens * kind.rowBytes;
    return createError('KV_ENCODER_FULL', {
      kind: kind.name, neededBytes, heldBytes: pinnedBytes, budgetBytes, waiting: this.queue.length,
    });
  }
}

/** The rows that an encoder answers, or the error that it ends with. */
async function computedBy(
  compute: ReadAcquireOptions['compute'], item: EncoderItem, signal: AbortSignal,
): Promise<ComputedRows | { readonly error: unknown }> {
  try {
    return copyComputedRows(await compute({ signal }), item);
  } catch (error) {
    return { error };
  }
}

function endComputation(item: EncoderItem): AbortController | undefined {
  const { computation } = item;
  item.computation = undefined;
  return computation;
}

function disagrees(given: number | undefined, known: number | undefined): boolean {
  return given !== undefined && known !== undefined && given !== known;
}

function wrongTokens(received: number, tokens: number): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'EncoderCache.acquire', option: 'tokens',
    expected: `${tokens}, the rows of the item with this hash`, received,
    hint: 'Hash everything that the output of the encoder depends on.',
  });
}

function tooLarge({ kind, tokens, bytes }: EncoderItem, budgetBytes: number): Error {
  return createError('KV_ITEM_TOO_LARGE', { kind: kind.name, tokens: tokens!, bytes: bytes!, budgetBytes });
}
