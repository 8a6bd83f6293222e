// EncoderItems: the life of an EncoderCache's items, from the first request for one to its eviction: which requests
// join, which encoder runs, which requests wait for room, and when each is answered. No caller's code runs inside its
// calls: encoders start in a microtask of their own, and a caller's listeners of an abort are called last.

import { markAsUntransferable } from 'node:worker_threads';
import { arrayNameOf, arrayOver, bytesIfOf, type SideDtype, sideDtypeBytes, type SideView } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';
import { notConstructible } from '../base/options.js';
import { checkStack } from '../device/cache-calls.js';
import { after } from '../device/wait.js';
import { domainParts, type PrefixDomain, type PrefixDomainParts } from '../prefix/domain.js';
import type { EncoderKind, ReadAcquireOptions, ReadItemName } from './encoder-options.js';
import { EncoderRoom, RoomQueue, type RoomTicket } from './encoder-room.js';

// EncoderItem: what an EncoderCache knows of one item. `queued`: it waits for room; `computing`: its encoder runs;
// `stored`: its rows are there. EncoderCache moves it from state to state, EncoderRoom counts its bytes; nothing here
// changes anything else.

export class EncoderItem {
  readonly key: string;
  readonly domain: PrefixDomain;
  readonly kind: EncoderKind;
  /** As it was read: `s` and a string, or `b` and bytes. */
  readonly hash: string;
  /** Arrival of the request that it was made for: its place among those that wait for room. */
  readonly number: number;
  state: 'queued' | 'computing' | 'stored' = 'queued';
  /** Rows, as far as known. */
  tokens: number | undefined;
  rows: SideView | undefined;
  // What EncoderRoom notes of it:
  countedBytes = 0;
  isOutside = false;
  /** Holds that were not released. */
  holds = 0;
  /** Whether later requests may be given it. */
  isFindable = true;
  /** Ends the computation that runs; another object for each. */
  computation: AbortController | undefined;
  readonly #isMade = true;

  constructor({ key, domain, kind, hash }: ReadItemName, number: number, tokens: number | undefined) {
    this.key = key;
    this.domain = domain;
    this.kind = kind;
    this.hash = hash;
    this.number = number;
    this.tokens = tokens;
  }

  /** Whether it is an EncoderItem, and no object that only has its prototype. */
  static isInstance(value: unknown): value is EncoderItem {
    return typeof value === 'object' && value !== null && #isMade in value;
  }

  /** Bytes of its rows; undefined where their number is not known yet. */
  get bytes(): number | undefined {
    return this.tokens === undefined ? undefined : this.tokens * this.kind.rowBytes;
  }
}

/** What an encoder answered, in memory of the cache's own, which the caller cannot change any more. */
export interface ComputedRows {
  readonly rows: SideView;
  readonly tokens: number;
}

/**
 * A copy of an encoder's answer. Throws KV_INVALID_OPTION where it is not rows of the item's kind, or not as many as
 * were announced.
 */
export function copyComputedRows(
  answer: unknown, { kind: { width, dtype, rowBytes }, tokens }: EncoderItem,
): ComputedRows {
  const bytes = bytesIfOf(dtype, answer);
  if (bytes === undefined || bytes.length === 0 || bytes.length % rowBytes !== 0) throw wrong(bytes);
  const count = bytes.length / rowBytes;
  if (tokens !== undefined && count !== tokens) throw wrong(bytes);
  const buffer = new ArrayBuffer(bytes.length);
  new Uint8Array(buffer).set(bytes);
  markAsUntransferable(buffer); // no user of a view can take the rows away from the cache
  return { rows: arrayOver(dtype, buffer, 0, count * width), tokens: count };

  function wrong(given: Uint8Array | undefined): Error {
    const announced = tokens === undefined ? 'whole rows' : `${formatNumber(tokens)} rows (\`tokens\`)`;
    return createError('KV_INVALID_OPTION', {
      reason: given === undefined ? 'type' : 'range', owner: 'EncoderCache.acquire', option: 'compute',
      isReturned: true,
      expected: `a function that returns a ${arrayNameOf(dtype)} of ${announced} of ${formatNumber(width)} (${dtype})`,
      received: given === undefined ? answer : `${formatNumber(given.length / sideDtypeBytes(dtype))} elements`,
    });
  }
}

// EncoderRequest: one call of `EncoderCache.acquire` until it is answered, by a hold or an error, once. It listens to
// the caller's signal and sets the caller's time limit, and removes both with the answer.

export class EncoderRequest {
  readonly given: ReadAcquireOptions;
  /** How many requests came before. */
  readonly number: number;
  readonly answer: Promise<EncoderHold>;
  /** The item that it waits for. */
  item: EncoderItem | undefined;
  /** Its own place in the queue, where it waits for no item yet. */
  ticket: RoomTicket | undefined;
  #resolve!: (hold: EncoderHold) => void;
  #reject!: (error: unknown) => void;
  #withdraw: () => void = () => {};

  constructor(given: ReadAcquireOptions, number: number) {
    this.given = given;
    this.number = number;
    this.answer = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  /**
   * Calls `giveUp` with the error when the caller's signal aborts or the time is over, unless it was answered before.
   */
  watch(giveUp: (error: Error) => void): void {
    const { signal, timeoutMs } = this.given;
    const abort = (): void => {
      giveUp(createError('KV_ABORTED', { operation: 'waiting for an encoder item' }, { cause: signal!.reason }));
    };
    signal?.addEventListener('abort', abort);
    const cancel = timeoutMs === undefined ? undefined : afterAll(timeoutMs, () => giveUp(this.#timeout(timeoutMs)));
    this.#withdraw = () => {
      signal?.removeEventListener('abort', abort);
      cancel?.();
    };
  }

  resolve(hold: EncoderHold): void {
    this.#withdraw();
    this.#resolve(hold);
  }

  reject(error: unknown): void {
    this.#withdraw();
    this.#reject(error);
  }

  #timeout(timeoutMs: number): Error {
    if (this.item?.state === 'computing') return createError('KV_TIMEOUT', { timeoutMs, waitedFor: 'the encoder' });
    return createError('KV_TIMEOUT', {
      timeoutMs, waitedFor: 'room in the encoder cache',
      hint: 'Release holds, raise `budgetBytes`, or raise `timeoutMs`.',
    });
  }
}

/** As `after`, also for times that no timer can be set to. */
function afterAll(delayMs: number, wake: () => void): () => void {
  const end = performance.now() + delayMs;
  let cancel: () => void;
  const set = (): void => {
    cancel = after(() => {
      if (performance.now() < end - 1) set();
      else wake();
    }, end - performance.now());
  };
  set();
  return () => { cancel(); };
}

// EncoderHold: one user's hold on the rows of an item, which stay in their EncoderCache until it is released. A handle:
// all state is the cache's.

/** The part of a cache that its holds talk to. */
export interface HoldOwner {
  /** A hold of the item was released. */
  release(item: EncoderItem): void;
}

/** A hold on the rows of an item, made by `EncoderCache.acquire`. Until it is released they are not evicted. */
export class EncoderHold {
  /** Name of the item's kind. */
  readonly kind: string;
  /** Rows of the item. */
  readonly tokens: number;
  /** Elements of a row. */
  readonly width: number;
  /** Type of an element. */
  readonly dtype: SideDtype;
  /** Bytes of all rows. */
  readonly bytes: number;
  /** Whether the rows stay in the cache after their last release; false where they are more than its whole budget. */
  readonly isCached: boolean;
  readonly #owner: HoldOwner;
  readonly #item: EncoderItem;
  #isReleased = false;

  /** @internal Use `encoderCache.acquire`. */
  constructor(owner: HoldOwner, item: EncoderItem) {
    if (!EncoderItem.isInstance(item)) throw notConstructible('EncoderHold', 'encoderCache.acquire');
    const { name, width, dtype } = item.kind;
    this.kind = name;
    this.tokens = item.tokens!;
    this.width = width;
    this.dtype = dtype;
    this.bytes = item.bytes!;
    this.isCached = item.countedBytes > 0;
    this.#owner = owner;
    this.#item = item;
  }

  /** Whether it is an EncoderHold that a cache made, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is EncoderHold {
    return typeof value === 'object' && value !== null && #item in value;
  }

  /** Whether `release` was called. */
  get isReleased(): boolean {
    return this.#isReleased;
  }

  /** Lets go of the rows: no view of them may be used any more. Idempotent; does nothing once the cache is closed. */
  release(): void {
    if (this.#isReleased) return;
    checkStack();
    this.#isReleased = true;
    this.#owner.release(this.#item);
  }

  [Symbol.dispose](): void {
    this.release();
  }

  /** The item, for `owner` only. Throws KV_HOLD_STATE. @internal */
  itemFor(owner: HoldOwner, operation: string): EncoderItem {
    if (owner !== this.#owner) throw createError('KV_HOLD_STATE', { operation, problem: 'belongs to another cache' });
    if (this.#isReleased) throw createError('KV_HOLD_STATE', { operation, problem: 'was released' });
    return this.#item;
  }
}

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
  readonly room: EncoderRoom<EncoderItem>;
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
    if (this.#requestsOf(item).size === 0) { // no one to wait for room
      this.#abandon(item);
      this.queue.serve();
      return;
    }
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
