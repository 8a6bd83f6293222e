// Admission: which waiting requests get a slot, and which running requests give theirs up. It leaves a watermark of
// rows for running answers to grow into, lets a request wait for a running one that computes the start of its prompt,
// preempts for more urgent requests, and blocks while other users of the cache hold what its requests need. Called
// within a step; runs no pass.
//
// Invariants: the running list is in order; a preempted request keeps its arrival number; while a scheduler of the same
// pool waits for capacity, no request starts beside running ones.

import { setImmediate } from 'node:timers/promises';

import { isKvError } from '../base/errors.js';
import type { Sequence } from '../cache/sequence.js';
import { CapacityWait } from './capacity-wait.js';
import type { PromptItem } from '../prefix/prompt-encoder.js';
import type { EngineCalls } from './engine-calls.js';
import type { Generation } from './generation.js';
import type { OpenRequests } from './open-requests.js';
import { commonTokens } from './pass-demand.js';
import { budgetsOf, checkBudgets, type Budgets } from './request.js';
import type { RunningList } from './running-list.js';
import type { ReadSchedulerOptions } from './scheduler-options.js';

/** Requests refused in one step, while none runs, before the event loop gets a turn. */
const maxRefusals = 64;
const driverRetries = 2;
/** Ms of starting requests, most of them mapping pages, after which the event loop gets a turn. */
const startMs = 1;

/** What the cache has of the first `tokens` tokens of a prompt. */
interface FoundText {
  readonly generation: Generation;
  readonly tokens: number;
  readonly cachedTokens: number;
  readonly pendingTokens: number;
}

export class Admission {
  readonly #options: ReadSchedulerOptions;
  readonly #requests: OpenRequests;
  readonly #running: RunningList;
  readonly #engine: EngineCalls;
  readonly #capacity: CapacityWait;
  /**
   * Whether a request was refused beside running ones, or preempted: none starts until one has ended or more can be
   * had.
   */
  #isFull = false;
  /** Whether none runs, and others hold what the waiting requests need. */
  #isBlocked = false;
  /** By running requests that others wait for: what was cached of these in this step. */
  readonly #found = new Map<Generation, FoundText>();
  /** When a request was last found to need more than they are. */
  #budgets: Budgets = { pages: 0, sideBytes: 0 };

  constructor(options: ReadSchedulerOptions, requests: OpenRequests, running: RunningList, engine: EngineCalls) {
    this.#options = options;
    this.#requests = requests;
    this.#running = running;
    this.#engine = engine;
    this.#capacity = new CapacityWait(options.cache, options.clock);
  }

  /**
   * Starts waiting requests while there are slots, memory, and prefill tokens in this step that no earlier prompt
   * takes. Where that takes long the event loop gets a turn in between, in which requests may come and end.
   */
  async admit(): Promise<void> {
    const { cache, order, maxBatch } = this.#options;
    const { waiting } = this.#requests;
    const running = this.#running;
    const isAlone = running.length === 0;
    if (isAlone && this.#capacity.recheck()) waiting.unblock();
    if (isAlone || (this.#isFull && this.#capacity.hasMore())) this.#isFull = false;
    if (waiting.hasUnfit && this.#hasOtherBudgets()) waiting.reconsider();
    let refusals = 0;
    let hasPlace = false; // a request has just been preempted
    let beganMs = performance.now();
    this.#isBlocked = false;
    this.#found.clear();
    while (waiting.length > 0) {
      const isFirst = hasPlace || !this.#capacity.hasWaiters;
      const hasRoom = running.length === 0 || (!this.#isFull && isFirst && running.length < maxBatch);
      if (!hasRoom && running.last!.urgency >= waiting.urgency) return;
      let next = this.#firstReady(!isAlone && running.length > 0);
      if (next === undefined) break;
      if (this.#isStepFullFor(next)) {
        next = hasRoom ? this.#firstShort() : undefined;
        if (next === undefined) return;
      }
      if (hasRoom && this.#start(next)) {
        hasPlace = false;
        if (performance.now() - beganMs > startMs) {
          await setImmediate();
          this.removeEnded();
          beganMs = performance.now();
        }
        continue;
      }
      const { last } = running;
      if (last === undefined) {
        if (cache.counts().idleSlots === 0) break;
        if (++refusals < maxRefusals) continue; // requests that fit pass it
        return;
      }
      // Never preempt a request that the order ranks ahead of the candidate: an order need not look at urgency.
      if (next.isBlocked || last.urgency >= next.urgency || order(last, next) < 0) return;
      if (this.#setAside(next)) continue;
      this.preempt(last);
      this.#isFull = false;
      hasPlace = true;
    }
    this.#isBlocked = running.length === 0 && waiting.length > 0 && !waiting.hasArrivals;
  }

  /**
   * Gives slots to requests for other answers to a prompt that has just been computed, by forks of its sequence, as far
   * as there is room and no more urgent request waits. The others stay its followers; all do where it holds selected
   * tokens, which cannot be forked.
   */
  fork(leader: Generation): void {
    const { cache, maxBatch, watermarkRows } = this.#options;
    const { layout, pool } = cache;
    const followers = [...this.#requests.takeFollowers(leader)];
    try {
      while (followers.length > 0 && leader.promptTokens > 1 && !leader.sequence!.isLossy && cache.canTakeBack(1)) {
        const rows = watermarkRows + 1; // it writes to its last row, and so needs its own
        const hasRoom =
          !this.#isFull && !this.#capacity.hasWaiters && this.#running.length < maxBatch && cache.counts().idleSlots > 0
          && this.#requests.waiting.urgency <= leader.urgency && pool.obtainablePages() >= layout.pagesFor(rows);
        if (!hasRoom) break;
        const next = followers[0]!;
        withRetries(() => { next.startFrom(leader); });
        followers.shift();
        this.#running.push(next);
        this.#requests.enter(next);
        this.#requests.countStart(next);
      }
    } catch (error) {
      if (!isKvError(error) || error.recovery === 'restart' || error.code === 'KV_CLOSED') throw error;
    } finally {
      this.#requests.follow(leader, followers);
    }
    this.#running.sort();
  }

  /** Takes a request's slot; it waits, and none starts until another has ended. */
  preempt(generation: Generation): void {
    generation.giveWay();
    this.#running.remove(generation);
    this.#requests.preempt(generation);
    this.#isFull = true;
    this.#capacity.refuse();
  }

  /** Takes the slots of all requests, which wait. */
  preemptAll(): void {
    for (const generation of this.#running.all) if (!generation.hasEnded) this.#requests.preempt(generation);
    this.removeEnded();
  }

  /** Slots of ended requests go back, and requests may start again. */
  removeEnded(): void {
    if (this.#running.removeEnded() > 0) this.#isFull = false;
  }

  /** Lets requests start again, whatever was refused. */
  reopen(): void {
    this.#isFull = false;
  }

  /** Resolves when it is not blocked any more. Rejects as `CapacityWait.wait`. */
  async unblocked(): Promise<void> {
    if (this.#isBlocked) await this.#capacity.wait();
  }

  /** Ends `unblocked`: there is another reason to step. */
  unblock(): void {
    this.#isBlocked = false;
    this.#capacity.stop();
  }

  /** The first that need not wait for a prompt that is being computed. Blocked requests are passed while none runs. */
  #firstReady(withBlocked: boolean): Generation | undefined {
    const { waiting } = this.#requests;
    for (let next = waiting.first(withBlocked); next !== undefined; next = waiting.first(withBlocked)) {
      this.#findLeader(next);
      if (next.leader === undefined) return next;
      waiting.follow(next);
    }
    return undefined;
  }

  /** Whether the prompts of running requests that go before it take all of the step. */
  #isStepFullFor(next: Generation): boolean {
    const { order, prefill: { tokens, promptTokens } } = this.#options;
    let prefillTokens = 0;
    for (const other of this.#running.all) {
      if (order(other, next) < 0) prefillTokens += Math.min(other.remainingPrefillTokens, promptTokens);
    }
    return prefillTokens >= tokens;
  }

  /**
   * The shortest of those that are as urgent as the prompts that are being computed, if some of a step's `shortTokens`
   * are left for it.
   */
  #firstShort(): Generation | undefined {
    const { shortTokens } = this.#options.prefill;
    const { waiting } = this.#requests;
    const first = this.#running.all.find(({ remainingPrefillTokens }) => remainingPrefillTokens > 0);
    for (let next = waiting.shortest(); next !== undefined; next = waiting.shortest()) {
      let shorterTokens = 0;
      for (const { urgency, remainingPrefillTokens } of this.#running.all) {
        if (urgency >= first!.urgency && remainingPrefillTokens <= next.textTokens) {
          shorterTokens += remainingPrefillTokens;
        }
      }
      if (shorterTokens >= shortTokens || next.urgency < first!.urgency) return undefined;
      this.#findLeader(next);
      if (next.leader === undefined) return next;
      waiting.follow(next);
    }
    return undefined;
  }

  /**
   * Leases a slot, sets the request aside when it needs more than the budgets are, or ends it when nothing can make
   * room for it. Returns false when it has to wait where it is.
   */
  #start(generation: Generation): boolean {
    const isAlone = this.#running.length === 0;
    if (!isAlone && !this.#hasRoom(generation)) return this.#refuse(generation);
    const { waiting } = this.#requests;
    try {
      generation.held?.end(); // the slot that it is held in is the best for it
      generation.start(this.#lease(generation));
    } catch (error) {
      generation.held?.again();
      if (!isKvError(error) || error.recovery === 'restart' || error.code === 'KV_CLOSED') throw error;
      const isShort = error.recovery === 'free';
      if (isShort && !isAlone) return this.#refuse(generation);
      if (isShort && this.#setAside(generation)) return true;
      if (isShort && this.#capacity.isHeldByOthers()) {
        this.#capacity.block(error);
        waiting.block(generation);
        return false;
      }
      waiting.take(generation);
      this.#requests.fail(generation, error);
      return true;
    }
    this.#running.push(generation); // first: what runs is released, whatever throws
    waiting.take(generation);
    this.#requests.countStart(generation);
    if (!generation.hasEnded) this.#skipPrefill(generation);
    if (generation.hasEnded) this.removeEnded();
    else this.#running.sort();
    return true;
  }

  /** Returns whether the request is out of the way: it was set aside. */
  #refuse(generation: Generation): boolean {
    if (this.#setAside(generation)) return true;
    this.#isFull = true;
    this.#capacity.refuse();
    return false;
  }

  /**
   * Has a request whose text is more than the budgets hold wait until these change; others pass it. Returns whether it
   * is one.
   */
  #setAside(generation: Generation): boolean {
    const { cache } = this.#options;
    const budgets = budgetsOf(cache);
    try {
      checkBudgets(generation.request, generation.textTokens, cache, budgets);
      return false;
    } catch (error) {
      generation.shortage = error as Error;
    }
    generation.held?.end();
    generation.held = undefined;
    this.#budgets = budgets;
    this.#requests.waiting.setAside(generation);
    this.#capacity.blockForBudget();
    return true;
  }

  #hasOtherBudgets(): boolean {
    const { pages, sideBytes } = budgetsOf(this.#options.cache);
    return pages !== this.#budgets.pages || sideBytes !== this.#budgets.sideBytes;
  }

  /** Where the whole prompt is cached with its last logits, the first token is there at once, and may be the last. */
  #skipPrefill(generation: Generation): void {
    try {
      const next = this.#engine.nextOfCached(generation);
      if (next === undefined || generation.hasEnded) return;
      this.#requests.totals.skippedPrefills += 1;
      this.#requests.accept(generation, next.token, next.logProbability, this.#options.clock.now());
    } catch (error) { // its sampler's
      this.#requests.fail(generation, error as Error);
    }
  }

  /** Whether its prompt leaves the watermark free. An estimate: `#lease` decides. */
  #hasRoom(generation: Generation): boolean {
    const { cache, watermarkRows } = this.#options;
    const { layout, pool } = cache;
    const pages = cache.pagesFor(generation.textTokens);
    const sparePages = pool.obtainablePages() - watermarkRows * layout.pagesPerRow;
    if (pages <= sparePages) return true;
    const { cachedTokens } = cache.prefixes.lookup(generation.prompt);
    return pages - layout.pagesFor(Math.floor(cachedTokens / layout.tokensPerRow)) <= sparePages;
  }

  /** A slot with the cached start of its text. Throws what `acquire` throws. */
  #lease(generation: Generation): Sequence {
    const { cache, stream } = this.#options;
    const { caching, request: { priority, tenant, salt, adapter, needs } } = generation;
    generation.namespace = cache.prefixes.namespace;
    // Without caching only the number of tokens matters, and reading them costs a copy.
    const prompt =
      caching === 'off' ? { promptTokens: generation.textTokens, tenant, salt, adapter, needs } : generation.prompt;
    const options = { ...prompt, caching, priority, stream, selected: generation.selected };
    return withRetries(() => cache.acquire(options));
  }

  /**
   * Sets its `leader` to a running request that computes the start of its prompt, if waiting for that saves enough. The
   * wait ends when the common start is there, or the leader does not run any more; so it always ends.
   */
  #findLeader(generation: Generation): void {
    const { minPendingTokens } = this.#options;
    if (minPendingTokens === Infinity) return;
    let leader: Generation | undefined;
    let awaitedTokens = minPendingTokens - 1;
    for (const other of this.#running.all) {
      if (other.remainingPrefillTokens === 0 || other.text[0] !== generation.text[0] || !other.sharesWith(generation)) {
        continue;
      }
      // they have no more in common than is computed
      if (other.text[other.length] !== generation.text[other.length]) continue;
      const common = commonTokens(generation, other);
      if (common <= awaitedTokens || common <= other.length) continue;
      leader = other;
      awaitedTokens = common;
    }
    if (leader === undefined) return;
    const { cachedTokens, pendingTokens } = this.#find(generation, leader, awaitedTokens);
    awaitedTokens = Math.min(awaitedTokens, pendingTokens); // less where items differ, or the cache does not store it
    if (awaitedTokens - cachedTokens < minPendingTokens) return;
    generation.leader = leader;
    generation.awaitedTokens = awaitedTokens;
  }

  /**
   * What is cached of the first `tokens` tokens of a prompt, which `leader` has too: looked up once for all that are
   * alike.
   */
  #find(generation: Generation, leader: Generation, tokens: number): Pick<FoundText, 'cachedTokens' | 'pendingTokens'> {
    const known = this.#found.get(leader);
    const isKnown = known !== undefined && isFoundAlike(known.generation, generation, Math.max(known.tokens, tokens))
      && known.cachedTokens < Math.min(known.tokens, tokens)
      && (tokens <= known.tokens || known.pendingTokens < known.tokens);
    if (isKnown) return known;
    const { cachedTokens, pendingTokens } = this.#options.cache.prefixes.lookup(generation.prompt);
    this.#found.set(leader, { generation, tokens, cachedTokens, pendingTokens });
    return { cachedTokens, pendingTokens };
  }
}

/** Whether the cache finds the same of the first `tokens` tokens of both prompts, which are the same. */
function isFoundAlike({ request: a }: Generation, { request: b }: Generation, tokens: number): boolean {
  const needs = a.needs ?? [];
  const isAlike = a.tenant === b.tenant && a.salt === b.salt && a.adapter === b.adapter && a.caching === b.caching;
  return isAlike && (a.needs === undefined) === (b.needs === undefined) && needs.length === (b.needs ?? []).length
    && needs.every((name) => b.needs!.includes(name)) && hasSameItems(a.items, b.items, tokens);
}

/** Whether the same items, of which each list has its own in order, begin in the first `tokens` tokens. */
function hasSameItems(a: readonly PromptItem[], b: readonly PromptItem[], tokens: number): boolean {
  for (let index = 0; ; index += 1) {
    const [one, other] = [a[index], b[index]];
    const isOver = (one === undefined || one.at >= tokens) && (other === undefined || other.at >= tokens);
    if (isOver) return true;
    const isSame = one?.at === other?.at && one?.length === other?.length && one?.kind === other?.kind
      && one?.hash === other?.hash;
    if (!isSame) return false;
  }
}

/**
 * Calls `work` again when the driver says that this may help. Throws what `work` throws, at the latest the third time.
 */
export function withRetries<T>(work: () => T): T {
  for (let tries = 0; ; tries += 1) {
    try {
      return work();
    } catch (error) {
      if (!isKvError(error) || error.recovery !== 'retry' || tries === driverRetries) throw error;
    }
  }
}
