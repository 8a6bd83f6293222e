// ContinuousBatching: many requests through one engine, a step at a time. A step is one forward pass: it admits who may
// start, plans a token for every sequence that decodes and chunks for prompts, makes room, calls the engine, and hands out
// tokens. The schedulers feed it and decide when to step. For one thread; while a step runs, requests may be added and ended.
//
// Invariants: what runs has a slot, and the running are in order; what gives way waits under its old number; every request ends
// exactly once, at once when its signal, its deadline or its scheduler says so. What it holds is released when no pass uses it.

import { setImmediate } from 'node:timers/promises';

import { isKvError } from '../base/errors.js';
import { ChangeSignal } from '../device/change-signal.js';
import { AdmissionControl } from './admission-control.js';
import { withRetries } from './driver-retries.js';
import { EngineCalls, type EngineCall } from './engine-calls.js';
import type { Generation } from './generation.js';
import { OpenRequests } from './open-requests.js';
import { OtherUsers } from './other-users.js';
import type { Pass } from './pass.js';
import { RunningList } from './running-list.js';
import type { ReadSchedulerOptions } from './scheduler-options.js';
import { StepPasses } from './step-passes.js';
import { countStart, noTotals } from './totals.js';
import type { WaitingList } from './waiting-list.js';

/** Requests that are refused in a step, while nobody runs, before the event loop has a turn. */
const mostRefusals = 64;

export class ContinuousBatching {
  readonly totals = noTotals();
  readonly requests: OpenRequests;
  /** A request has begun or ended, or a pass that was given up is over. */
  readonly changed = new ChangeSignal();
  readonly #options: ReadSchedulerOptions;
  readonly #admission: AdmissionControl;
  readonly #engine: EngineCalls;
  readonly #waiting: WaitingList;
  readonly #running: RunningList;
  readonly #others: OtherUsers;
  #passes: StepPasses;
  #isStepping = false;
  /** Passes that were given up and are not over. */
  #givenUp = 0;
  /** Nobody is admitted until somebody has ended, or others have released something: one was refused, or had to give way. */
  #isFull = false;
  /** Nobody runs, and others hold what those who wait need. */
  #isHeldUp = false;

  constructor(options: ReadSchedulerOptions) {
    const { cache, maxBatch, clock, order } = options;
    this.#options = options;
    this.#admission = new AdmissionControl(options);
    this.#others = new OtherUsers(cache, clock);
    this.#engine = new EngineCalls({ ...options, totals: this.totals });
    this.#passes = new StepPasses(cache, maxBatch);
    this.#running = new RunningList(order);
    this.requests = new OpenRequests({
      clock, order, totals: this.totals,
      onOver: (generation, error) => { this.end(generation, error); }, onFailure: (error) => { this.failAll(error); },
    });
    this.#waiting = this.requests.waiting;
  }

  get waitingRequests(): number {
    return this.#waiting.length;
  }

  get runningRequests(): number {
    return this.#running.countOpen();
  }

  /** Whether there is nothing to step for, and no pass uses a slot. */
  get isIdle(): boolean {
    return this.requests.count === 0 && !this.#isStepping && this.#givenUp === 0 && this.#running.length === 0;
  }

  /** A request that `requests` expects may start. Nothing happens when it has ended. */
  enqueue(generation: Generation): void {
    if (generation.hasEnded) return;
    this.requests.enqueue(generation);
    this.#wake();
  }

  /** Ends a request with an error, unless it has ended. */
  end(generation: Generation, error: Error): void {
    this.requests.fail(generation, error);
    if (generation.sequence !== undefined && !this.#isStepping) this.#removeEnded();
    this.#engine.hearEnd();
    this.#wake();
  }

  /** Ends all requests with an error. */
  failAll(error: Error): void {
    this.requests.failAll(error);
    if (!this.#isStepping) this.#removeEnded();
    this.#isFull = false;
    this.#engine.hearEnd();
    this.#wake();
  }

  /**
   * Runs one step. Rejects with what no request can be blamed for: a lost driver, a closed cache, an option's function that
   * throws; then call `failAll`.
   */
  async step(): Promise<void> {
    this.#isStepping = true;
    try {
      this.#dropEnded();
      const stall = this.#engine.stall();
      if (stall !== undefined) this.failAll(stall);
      this.#waiting.settle();
      this.#running.keepOrder();
      this.#admit();
      if (this.#prepare()) await this.#compute(this.#passes);
    } finally {
      this.#isStepping = false;
      this.#removeEnded();
      this.changed.raise();
    }
  }

  /**
   * After a step: gives the event loop a turn, for signals and timers, where the engine answers at once. While others hold what
   * those who wait need, it lasts until there is reason for another step. Rejects as `step` does.
   */
  async turn(): Promise<void> {
    await setImmediate();
    if (this.#isHeldUp) await this.#others.released();
  }

  async #compute(passes: StepPasses): Promise<void> {
    const { batch, decode, prefill } = passes;
    const { cache } = this.#options;
    try {
      if (!await this.#call('decode', decode) || !await this.#call('prefill', prefill)) return;
      cache.commit(batch);
      this.totals.steps += 1;
      this.#advance(decode);
      this.#advance(prefill);
    } finally {
      if (decode.isRunning || prefill.isRunning) this.#leave(passes);
      else if (batch.isPrepared && !cache.isClosed) cache.discard(batch);
      this.#removeEnded(); // before those who asked hear of it
    }
  }

  /** A pass that was given up still runs: the slots of its batch are released, and idle when it is over. The next step has another. */
  #leave(passes: StepPasses): void {
    const { cache, maxBatch } = this.#options;
    const { batch, decode, prefill } = passes;
    this.#givenUp += 1;
    this.#passes = new StepPasses(cache, maxBatch);
    void Promise.all([decode.over, prefill.over]).then(() => {
      if (batch.isPrepared && !cache.isClosed) cache.discard(batch);
      this.#givenUp -= 1;
      this.#isFull = false;
      this.changed.raise();
    });
    for (const generation of this.#running.all) if (!generation.hasEnded) this.#giveUp(generation); // of the other pass in the batch
  }

  /** There is reason for another step. */
  #wake(): void {
    this.#isHeldUp = false;
    this.#others.stop();
    this.changed.raise();
  }

  /** Ends whoever is too late, and puts back whoever lost his slot (`prefixes.reset` with `preempt`). */
  #dropEnded(): void {
    this.requests.endLate();
    for (const generation of this.#running.all) {
      if (!generation.hasEnded && generation.sequence!.isReleased) this.#giveUp(generation);
    }
    this.#removeEnded();
  }

  /** Starts waiting requests while there are slots, memory, and prefill tokens in this step that no earlier prompt takes. */
  #admit(): void {
    const { order, maxBatch, prefillTokensPerStep } = this.#options;
    const isAlone = this.#running.length === 0;
    if (isAlone && this.#others.look()) this.#waiting.letTryAgain();
    if (isAlone || (this.#isFull && this.#others.haveReleased())) this.#isFull = false;
    let refusals = 0;
    let hasPlace = false; // somebody has just given way
    this.#isHeldUp = false;
    while (this.#waiting.length > 0) {
      const isMine = hasPlace || !this.#others.areInLine;
      const hasRoom = this.#running.length === 0 || (!this.#isFull && isMine && this.#running.length < maxBatch);
      if (!hasRoom && this.#running.last!.urgency >= this.#waiting.urgency) return;
      const next = this.#firstReady(!isAlone && this.#running.length > 0);
      if (next === undefined) break;
      let prefillTokens = 0;
      for (const other of this.#running.all) if (order(other, next) < 0) prefillTokens += other.remainingPrefillTokens;
      if (prefillTokens >= prefillTokensPerStep) return;
      if (hasRoom && this.#start(next)) {
        hasPlace = false;
        continue;
      }
      const { last } = this.#running;
      if (last === undefined) {
        if (this.#options.cache.counts().idleSlots === 0) break;
        if (++refusals < mostRefusals) continue; // those who fit pass him
        return;
      }
      // An order of one's own need not look at urgency: nobody gives way to whom it puts behind him.
      if (next.isHeldUp || last.urgency >= next.urgency || order(last, next) < 0) return;
      this.#preempt(last);
      this.#isFull = false;
      hasPlace = true;
    }
    this.#isHeldUp = this.#running.length === 0 && this.#waiting.length > 0 && !this.#waiting.hasArrivals;
  }

  /** The first that need not wait for a prompt that is being computed. Those that others hold up are passed while nobody runs. */
  #firstReady(withHeldUp: boolean): Generation | undefined {
    for (let next = this.#waiting.first(withHeldUp); next !== undefined; next = this.#waiting.first(withHeldUp)) {
      if (this.#admission.isReady(next, this.#running.all)) return next;
      this.#waiting.follow(next);
    }
    return undefined;
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
        this.#others.holdUp(error);
        this.#waiting.holdUp(generation);
        return false;
      }
      this.#waiting.take(generation);
      this.requests.fail(generation, refusal);
      return true;
    }
    this.#running.push(generation); // first: what runs is released, whatever throws
    this.#waiting.take(generation);
    countStart(this.totals, generation);
    if (!generation.hasEnded) this.#skipPrefill(generation);
    if (generation.hasEnded) this.#removeEnded();
    else this.#running.sort();
    return true;
  }

  /** No room beside those who run. */
  #refuse(): false {
    this.#isFull = true;
    this.#others.refuse();
    return false;
  }

  /** Where the whole prompt is cached with its last logits, the first token is there at once, and may be the last. */
  #skipPrefill(generation: Generation): void {
    try {
      const token = this.#engine.nextOfCached(generation);
      if (token === undefined || generation.hasEnded) return;
      this.totals.skippedPrefills += 1;
      this.requests.accept(generation, token, this.#options.clock.now());
    } catch (error) { // its sampler's
      this.requests.fail(generation, error as Error);
    }
  }

  /** Memory for the step, from those last in order if there is none other. False: there is nothing to run. */
  #prepare(): boolean {
    const { cache, prefillTokensPerStep } = this.#options;
    this.#removeEnded(); // by who was asked meanwhile
    while (this.#running.length > 0) {
      this.#passes.fill(this.#running.all, prefillTokensPerStep);
      try {
        withRetries(() => cache.prepare(this.#passes.batch));
        return true;
      } catch (error) {
        if (!isKvError(error) || error.recovery === 'restart' || error.code === 'KV_CLOSED') throw error;
        const last = this.#running.last!; // alone it waits for others
        const canWait = error.recovery === 'free' || error.code === 'KV_WORK_QUEUED'; // of another user of the cache
        if (canWait && (this.#running.length > 1 || !last.isStuck)) this.#preempt(last);
        else this.#failTogether(this.#running.all, error);
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
      if (pass.isRunning) { // it is waited for no more, whatever its slots are
        for (const generation of pass.generations) this.requests.fail(generation, error as Error);
        return false;
      }
      this.#options.cache.discard(this.#passes.batch); // first: a prepared sequence would retire only with its batch
      // An engine that met a slot which was taken away meanwhile is not to blame: the pass is run again without it.
      if (!pass.sequences.some((sequence) => sequence.isReleased)) {
        this.#failTogether(pass.generations, error as Error);
      }
      return false;
    }
  }

  /** What was computed is valid: lengths, shares, and the next token of whoever has all his text. */
  #advance(pass: Pass): void {
    const nowMs = this.#options.clock.now();
    for (let index = 0; index < pass.length; index += 1) {
      const generation = pass.generations[index]!;
      if (generation.hasEnded || generation.sequence!.isReleased) continue; // a lost slot: `#dropEnded` puts it back
      this.requests.advance(generation, pass.keptLogits[index]);
      if (pass.wantsLogits[index] === 0) continue;
      const error = pass.errors[index];
      if (error === undefined) this.requests.accept(generation, pass.nextTokens[index]!, nowMs);
      else {
        generation.takeBack();
        this.requests.fail(generation, error);
      }
    }
  }

  /** Gives his memory back, and waits under his old number, until somebody has ended. */
  #preempt(generation: Generation): void {
    this.#running.remove(generation);
    this.#giveUp(generation);
    this.#isFull = true;
    this.#others.refuse();
  }

  #giveUp(generation: Generation): void {
    generation.giveUp();
    this.totals.preemptions += 1;
    this.#waiting.addBack(generation);
  }

  #failTogether(generations: readonly Generation[], error: Error): void {
    for (const generation of generations) this.requests.fail(generation, error);
    this.#removeEnded();
  }

  #removeEnded(): void {
    if (this.#running.removeEnded() > 0) this.#isFull = false;
  }
}
