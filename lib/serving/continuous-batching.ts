// ContinuousBatching: many requests through one engine, a step at a time. A step is one forward pass: it admits who may
// start, plans a token for every sequence that decodes and chunks for prompts, makes room, calls the engine, and hands out
// tokens. The schedulers feed it and decide when to step. For one thread; nothing may be called while a step runs but
// `enqueue` and `dropWaiting`.
//
// Invariants: who runs has a slot, and the running are in order; whoever gives way waits under his old number; every request
// that was enqueued ends exactly once, with a result or an error.

import { setImmediate } from 'node:timers/promises';

import { isKvError } from '../errors/index.js';
import { AdmissionControl } from './admission-control.js';
import { withRetries } from './driver-retries.js';
import { EngineCalls, type EngineCall } from './engine-calls.js';
import type { Generation, GenerationResult } from './generation.js';
import { OtherUsers } from './other-users.js';
import type { Pass } from './pass.js';
import type { ReadSchedulerOptions } from './scheduler-options.js';
import { StepPasses } from './step-passes.js';
import { TenantShares } from './tenant-shares.js';
import { countStart, noTotals } from './totals.js';
import { WaitingList } from './waiting-list.js';

/** Requests that are refused in a step, while nobody runs, before the event loop has a turn. */
const mostRefusals = 64;

export class ContinuousBatching {
  readonly totals = noTotals();
  readonly #options: ReadSchedulerOptions;
  readonly #admission: AdmissionControl;
  readonly #engine: EngineCalls;
  readonly #passes: StepPasses;
  readonly #waiting = new WaitingList();
  readonly #running: Generation[] = [];
  readonly #shares = new TenantShares();
  readonly #others: OtherUsers;
  /** Nobody is admitted until somebody has ended, or others have released something: one was refused, or had to give way. */
  #isFull = false;
  /** Nobody runs, and others hold what those who wait need. */
  #isHeldUp = false;

  constructor(options: ReadSchedulerOptions) {
    const { cache, engine, maxBatch, now } = options;
    this.#options = options;
    this.#admission = new AdmissionControl(options);
    this.#others = new OtherUsers(cache);
    this.#engine = new EngineCalls({ engine, totals: this.totals, now });
    this.#passes = new StepPasses(cache, maxBatch);
  }

  get waitingRequests(): number {
    return this.#waiting.length;
  }

  get runningRequests(): number {
    return this.#running.length;
  }

  get isIdle(): boolean {
    return this.#running.length === 0 && this.#waiting.length === 0;
  }

  enqueue(generation: Generation): void {
    generation.share = this.#shares.enter(generation.tenant);
    this.#waiting.add(generation);
    this.#isHeldUp = false;
  }

  /**
   * Runs one step. Rejects with what no request can be blamed for: a lost driver, a closed cache, an option's function that
   * throws; then call `failAll`.
   */
  async step(): Promise<void> {
    this.#dropEnded();
    this.#keepOrder();
    this.#admit();
    if (!this.#prepare()) return;
    const { batch, decode, prefill } = this.#passes;
    const { cache } = this.#options;
    try {
      if (!await this.#call('decode', decode) || !await this.#call('prefill', prefill)) return;
      cache.commit(batch);
      this.totals.steps += 1;
      this.#advance(decode);
      this.#advance(prefill);
    } finally {
      if (batch.isPrepared && !cache.isClosed) cache.discard(batch);
      this.#removeEnded();
    }
  }

  /**
   * To be awaited after a step: gives the event loop a turn, for signals and timers, where the engine answers at once. While
   * others hold what those who wait need, until there is reason for another step, or `isOver`. Rejects as `step` does.
   */
  async turn(isOver = (): boolean => false): Promise<void> {
    await setImmediate();
    if (!this.#isHeldUp) return;
    const { failedRequests } = this.totals;
    await this.#others.released(() => {
      this.dropWaiting();
      return !this.#isHeldUp || this.totals.failedRequests > failedRequests || isOver();
    });
  }

  /** Ends all requests with an error. */
  failAll(error: Error): void {
    this.#waiting.removeIf((generation) => {
      this.#fail(generation, error);
      return true;
    });
    for (const generation of this.#running.splice(0)) this.#fail(generation, error);
    this.#isFull = false;
  }

  /** Ends whoever waits and was aborted or is too late: he holds nothing that a running step needs. */
  dropWaiting(): void {
    const nowMs = this.#options.now();
    this.#waiting.removeIf((generation) => this.#isOver(generation, nowMs));
  }

  /** Ends whoever was aborted or is too late, and puts back whoever lost his slot (`prefixes.reset` with `preempt`). */
  #dropEnded(): void {
    this.dropWaiting();
    const nowMs = this.#options.now();
    for (const generation of this.#running) {
      if (!this.#isOver(generation, nowMs) && generation.sequence!.isReleased) this.#giveUp(generation);
    }
    this.#removeEnded();
  }

  /** Whether a request was aborted or is too late; then it has ended with that. */
  #isOver(generation: Generation, nowMs: number): boolean {
    const error = generation.refusalAt(nowMs);
    if (error !== undefined) this.#fail(generation, error);
    return error !== undefined;
  }

  /** Tenants' shares grow with every step, and with them the order may change. */
  #keepOrder(): void {
    const { order } = this.#options;
    for (let at = 1; at < this.#running.length; at += 1) {
      if (order(this.#running[at - 1]!, this.#running[at]!) < 0) continue;
      this.#running.sort(order);
      return;
    }
  }

  /** Starts waiting requests while there are slots, memory, and prefill tokens in this step that no earlier prompt takes. */
  #admit(): void {
    const { order, maxBatch, prefillTokensPerStep } = this.#options;
    const isAlone = this.#running.length === 0;
    if (isAlone) this.#others.look();
    if (isAlone || (this.#isFull && this.#others.haveReleased())) this.#isFull = false;
    const isReady = (generation: Generation): boolean => {
      const isPassed = (isAlone || this.#running.length === 0) && this.#others.areHoldingUp(generation);
      return !isPassed && this.#admission.isReady(generation, this.#running);
    };
    let refusals = 0;
    let hasPlace = false; // somebody has just given way
    this.#isHeldUp = false;
    while (this.#waiting.length > 0) {
      const isMine = hasPlace || !this.#others.areInLine;
      const hasRoom = this.#running.length === 0 || (!this.#isFull && isMine && this.#running.length < maxBatch);
      if (!hasRoom && !this.#hasLessUrgent()) return;
      const next = this.#waiting.first(order, isReady);
      if (next === undefined) break;
      let prefillTokens = 0;
      for (const other of this.#running) if (order(other, next) < 0) prefillTokens += other.remainingPrefillTokens;
      if (prefillTokens >= prefillTokensPerStep) return;
      if (hasRoom && this.#start(next)) {
        hasPlace = false;
        continue;
      }
      const last = this.#running.at(-1);
      if (last === undefined) {
        if (this.#options.cache.counts().idleSlots === 0) break;
        if (++refusals < mostRefusals) continue; // those who fit pass him
        return;
      }
      // An order of one's own need not look at urgency: nobody gives way to whom it puts behind him.
      if (this.#others.areHoldingUp(next) || last.urgency >= next.urgency || order(last, next) < 0) return;
      this.#preempt(last);
      this.#isFull = false;
      hasPlace = true;
    }
    this.#isHeldUp = this.#running.length === 0 && this.#waiting.length > 0;
  }

  /** Whether some waiting request is more urgent than the last running one. */
  #hasLessUrgent(): boolean {
    const { urgency } = this.#running.at(-1)!;
    return urgency < 255 && this.#waiting.first((a, b) => b.urgency - a.urgency, () => true)!.urgency > urgency;
  }

  /** Leases a slot, or ends the request when nothing can make room for it. False: it has to wait. */
  #start(generation: Generation): boolean {
    const isAlone = this.#running.length === 0;
    if (!isAlone && !this.#admission.hasRoom(generation)) return this.#refuse();
    try {
      generation.start(this.#admission.lease(generation));
    } catch (error) {
      if (!isKvError(error) || error.recovery === 'restart' || error.code === 'KV_CLOSED') throw error;
      const isShort = error.recovery === 'free';
      if (isShort && !isAlone) return this.#refuse();
      const refusal = isShort ? this.#admission.refusalOf(generation, error, this.#others) : error;
      if (refusal === undefined) {
        this.#others.holdUp(generation);
        return false;
      }
      this.#waiting.remove(generation);
      this.#fail(generation, refusal);
      return true;
    }
    this.#waiting.remove(generation);
    countStart(this.totals, generation);
    if (!this.#skipPrefill(generation)) return true;
    this.#running.push(generation);
    this.#running.sort(this.#options.order);
    return true;
  }

  /** No room beside those who run. */
  #refuse(): false {
    this.#isFull = true;
    this.#others.refuse();
    return false;
  }

  /**
   * Where the whole prompt is cached with its last logits, the first token is there at once. False: the request has ended
   * with it.
   */
  #skipPrefill(generation: Generation): boolean {
    try {
      const token = this.#engine.nextOfCached(generation);
      if (token === undefined) return true;
      this.totals.skippedPrefills += 1;
      this.#accept(generation, token, this.#options.now());
    } catch (error) { // its sampler's
      this.#fail(generation, error as Error);
    }
    return generation.sequence !== undefined;
  }

  /** Memory for the step, from those last in order if there is none other. False: there is nothing to run. */
  #prepare(): boolean {
    const { cache, prefillTokensPerStep } = this.#options;
    while (this.#running.length > 0) {
      this.#passes.fill(this.#running, prefillTokensPerStep);
      try {
        withRetries(() => cache.prepare(this.#passes.batch));
        return true;
      } catch (error) {
        if (!isKvError(error) || error.recovery === 'restart' || error.code === 'KV_CLOSED') throw error;
        const last = this.#running.at(-1)!; // alone it waits for others
        const canWait = error.recovery === 'free' || error.code === 'KV_WORK_QUEUED'; // of another user of the cache
        if (canWait && (this.#running.length > 1 || !last.isStuck)) this.#preempt(last);
        else for (const generation of this.#running.splice(0)) this.#fail(generation, error);
      }
    }
    return false;
  }

  /** Has a pass computed and its next tokens chosen. False: it failed, and does not count. */
  async #call(call: EngineCall, pass: Pass): Promise<boolean> {
    if (pass.length === 0) return true;
    try {
      await this.#engine.run(call, pass);
      return true;
    } catch (error) {
      this.#options.cache.discard(this.#passes.batch); // first: a prepared sequence would retire only with its batch
      // An engine that met a slot which was taken away meanwhile is not to blame: the pass is run again without it.
      if (!pass.sequences.some((sequence) => sequence.isReleased)) {
        for (const generation of pass.generations) this.#fail(generation, error as Error);
      }
      return false;
    }
  }

  /** What was computed is valid: lengths, shares, and the next token of whoever has all his text. */
  #advance(pass: Pass): void {
    const nowMs = this.#options.now();
    for (let index = 0; index < pass.length; index += 1) {
      const generation = pass.generations[index]!;
      if (generation.sequence!.isReleased) continue; // it lost its slot meanwhile; `#dropEnded` puts it back
      generation.advance(pass.keptLogits[index]);
      generation.share!.tokens += generation.passTokens;
      if (pass.wantsLogits[index] === 0) continue;
      const error = pass.errors[index];
      if (error === undefined) this.#accept(generation, pass.nextTokens[index]!, nowMs);
      else {
        generation.takeBack();
        this.#fail(generation, error);
      }
    }
  }

  #accept(generation: Generation, token: number, nowMs: number): void {
    const before = generation.generatedTokens;
    const result = generation.accept(token, nowMs);
    this.totals.generatedTokens += generation.generatedTokens - before;
    if (result !== undefined) this.#finish(generation, result);
  }

  /** Gives his memory back, and waits under his old number, until somebody has ended. */
  #preempt(generation: Generation): void {
    this.#running.splice(this.#running.indexOf(generation), 1);
    this.#giveUp(generation);
    this.#isFull = true;
    this.#others.refuse();
  }

  #giveUp(generation: Generation): void {
    generation.giveUp();
    this.totals.preemptions += 1;
    this.#waiting.add(generation);
    this.#others.wake();
  }

  #finish(generation: Generation, result: GenerationResult): void {
    this.#end(generation);
    this.totals.completedRequests += 1;
    generation.listener.done(result);
  }

  #fail(generation: Generation, error: Error): void {
    this.#end(generation);
    this.totals.failedRequests += 1;
    generation.listener.failed(error);
  }

  #end(generation: Generation): void {
    const hasSlot = generation.sequence !== undefined;
    generation.release();
    if (hasSlot) {
      this.#isFull = false;
      this.#others.wake();
    }
    this.#shares.leave(generation.tenant, generation.share!);
  }

  /** Those without a sequence run no more: they have ended, or wait again. */
  #removeEnded(): void {
    let kept = 0;
    for (const generation of this.#running) if (generation.sequence !== undefined) this.#running[kept++] = generation;
    this.#running.length = kept;
  }
}
