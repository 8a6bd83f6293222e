// ContinuousBatching: many requests through one engine, a step at a time. A step is one forward pass: it admits
// requests, plans a token for every sequence that decodes and chunks of prompts, makes room, calls the engine, and
// hands out tokens. The schedulers feed it and decide when to step; with `maxBatch` 1 it serves one request after the
// other. For one thread; while a step runs, requests may be added and ended.
//
// Invariants: a running request holds a slot; every request ends exactly once, at once when its signal, its deadline or
// its scheduler says so. What it holds is released when no pass uses it.

import { setImmediate } from 'node:timers/promises';

import { createError, isKvError } from '../base/errors.js';
import { ChangeSignal, readWaitOptions, waitUntil, type WaitOptions } from '../device/wait.js';
import { Admission, withRetries } from './admission.js';
import { publishBadLogits } from './bad-logits.js';
import { EngineCalls, type EngineCall, type EngineState } from './engine-calls.js';
import type { Generation } from './generation.js';
import { LoadingRequests } from './loading-requests.js';
import { noTotals, OpenRequests, type ServingTotals } from './open-requests.js';
import { isPassNeeded } from './pass-demand.js';
import { checkFits, type Budgets } from './request.js';
import { RunningList } from './running-list.js';
import type { ReadSchedulerOptions } from './scheduler-options.js';
import { ServingTimes } from './serving-times.js';
import { StepPasses, type Pass } from './step-passes.js';
import { saysNotNumbers } from './token-choice.js';

/** An engine answers when its pass is over on the device, too. */
const awaited = { fence: 'awaited' } as const;

/** Follows what steps do with the cache. */
export interface StepObserver {
  /** A step calls the cache's `prepare` or `commit`. */
  enter(): void;
  /** The call has returned or thrown. */
  leave(): void;
  /** The step counts. Its completed requests still hold their slots. */
  committed(): void;
}

export interface BatchingOptions {
  /** Sums that the loop adds to. Default: of its own. */
  readonly totals?: ServingTotals;
  readonly observer?: StepObserver;
}

export class ContinuousBatching {
  readonly requests: OpenRequests;
  readonly times = new ServingTimes();
  /** A request has begun or ended, or a pass that was given up is over. */
  readonly changed = new ChangeSignal();
  readonly #options: ReadSchedulerOptions;
  readonly #observer: StepObserver | undefined;
  readonly #engine: EngineCalls;
  readonly #running: RunningList;
  readonly #admission: Admission;
  readonly #loading: LoadingRequests;
  #passes: StepPasses;
  #isStepping = false;
  #isPaused = false;
  /** Passes that were given up and are not over. */
  #givenUpPasses = 0;

  constructor(options: ReadSchedulerOptions, { totals = noTotals(), observer }: BatchingOptions = {}) {
    this.#observer = observer;
    const { cache, maxBatch, clock, order } = options;
    this.#options = options;
    this.#engine = new EngineCalls({ ...options, totals, times: this.times });
    this.#passes = new StepPasses(cache, maxBatch);
    this.#running = new RunningList(order);
    this.requests = new OpenRequests({
      clock, order, totals, times: this.times,
      onPrompt: (leader) => { this.#admission.fork(leader); },
      onFollower: (generation) => { this.#onceDecided(() => { this.enqueue(generation); }); },
      onOver: (generation, error) => { this.end(generation, error); }, onFailure: (error) => { this.failAll(error); },
    });
    this.#admission = new Admission(options, this.requests, this.#running, this.#engine);
    this.#loading = new LoadingRequests(cache);
    cache.lifetime.serves(this);
  }

  get totals(): ServingTotals {
    return this.requests.totals;
  }

  get waitingRequests(): number {
    return this.requests.waiting.length + this.requests.following + this.#loading.count;
  }

  get runningRequests(): number {
    return this.#running.countOpen();
  }

  get engineState(): EngineState {
    return this.#engine.state;
  }

  /** Whether there is nothing to step for, and no pass uses a slot. */
  get isIdle(): boolean {
    return this.requests.count === 0 && !this.#isStepping && this.#givenUpPasses === 0 && this.#running.length === 0;
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  /** Whether no request has a slot, and no pass uses one. */
  get isQuiet(): boolean {
    return !this.#isStepping && this.#givenUpPasses === 0 && this.#running.length === 0;
  }

  /**
   * Has no pass begin until `resume`, and all requests give their slots back once the step under way is over: they
   * wait.
   */
  pause(): void {
    this.#isPaused = true;
    this.#wake();
  }

  resume(): void {
    this.#isPaused = false;
    this.#wake();
  }

  /**
   * Lets a request that `requests` expects start, once text of its prompt has come from tiers. Nothing happens when it
   * has ended.
   */
  enqueue(generation: Generation): void {
    if (generation.hasEnded) return;
    const begin = (): void => {
      if (!generation.hasEnded) this.requests.enqueue(generation);
      this.#wake();
    };
    if (!this.#loading.start(generation, begin)) begin();
  }

  /** Lets a request start as `enqueue`, or ends it where it would not fit an empty cache with these budgets. */
  enqueueFitting(generation: Generation, budgets?: Budgets): void {
    try {
      checkFits(generation.request, this.#options.cache, budgets);
      this.enqueue(generation);
    } catch (error) {
      this.end(generation, error as Error);
    }
  }

  /** Ends a request with an error, unless it has ended. */
  end(generation: Generation, error: Error): void {
    this.requests.fail(generation, error);
    this.#noteEnd(generation);
  }

  /** Ends a request with the answer that it has, unless it has ended. Throws what the clock throws. */
  finish(generation: Generation): void {
    this.requests.finish(generation, this.#options.clock.now());
    this.#noteEnd(generation);
  }

  #noteEnd(generation: Generation): void {
    this.#onceDecided(() => {
      this.#loading.drop(generation);
      this.#letGo();
    });
  }

  /** Ended requests hold nothing from here on, but for what a step or a pass uses. */
  #letGo(): void {
    if (!this.#isStepping) this.#admission.removeEnded();
    this.#engine.noteEnd();
    this.#dropUnneeded();
    this.#wake();
  }

  /**
   * Does work that uses the cache. While a policy decides, which must not use the cache, the work waits until it
   * has decided; an error of the work then ends all requests, since no caller is left to throw it to.
   */
  #onceDecided(work: () => void): void {
    if (this.#options.cache.lifetime.isDeciding) {
      Promise.resolve().then(work).catch((error: unknown) => { this.requests.failAll(error as Error); });
    } else work();
  }

  /** Tells the engine that it need not go on with a pass whose answer no request needs. */
  #dropUnneeded(): void {
    const { decode, prefill } = this.#passes;
    for (const pass of [decode, prefill]) {
      if (pass.isRunning && !this.#isNeeded(pass)) {
        pass.drop(createError('KV_ABORTED', { operation: 'computing a pass' }));
      }
    }
  }

  #isNeeded(pass: Pass): boolean {
    const { cache, minPendingTokens } = this.#options;
    return isPassNeeded(pass, this.requests.all, cache.prefixes.isOn ? minPendingTokens : Infinity);
  }

  /** Ends all requests with an error. */
  failAll(error: Error): void {
    this.requests.failAll(error);
    this.#onceDecided(() => {
      this.#loading.dropAll();
      this.#admission.reopen();
      this.#letGo();
    });
  }

  /** Ends all requests with KV_CLOSED; resolves when no pass of theirs runs. Rejects with KV_TIMEOUT or KV_ABORTED. */
  async close(options: WaitOptions = {}): Promise<void> {
    this.failAll(createError('KV_CLOSED', { operation: 'go on', owner: 'KvCache' }));
    const read = readWaitOptions('KvCache.shutdown', options);
    await waitUntil("the engine's pass", read, () => this.isIdle, { signals: [this.changed], mustAsk: () => false });
  }

  /**
   * Runs one step. Rejects with what no request can be blamed for: a lost driver, a closed cache, an option's function
   * that throws; then call `failAll`.
   */
  async step(): Promise<void> {
    this.#isStepping = true;
    try {
      this.requests.endLate();
      this.#requeueLost();
      if (this.#isPaused) {
        this.#admission.preemptAll();
        this.#loading.letGo();
        return;
      }
      const stall = this.#engine.stall();
      if (stall !== undefined) this.failAll(stall);
      this.requests.waiting.beginStep();
      this.#running.keepOrder();
      await this.#admission.admit();
      this.#loading.beginNext(); // what was held may have its slot
      if (!this.#isPaused && this.#prepare()) await this.#compute(this.#passes);
    } finally {
      this.#isStepping = false;
      this.#admission.removeEnded();
      this.changed.raise();
    }
  }

  /**
   * After a step: gives the event loop a turn, for signals and timers, where the engine answers at once. While others
   * hold what the waiting requests need, and while it is paused, it lasts until there is reason for another step.
   * Rejects as `step` does.
   */
  async turn(): Promise<void> {
    await setImmediate();
    while (this.#isPaused && this.#running.length === 0 && this.requests.count > 0) {
      this.#loading.letGo(); // also of what came since
      await this.#woken();
    }
    await this.#admission.unblocked();
    while (this.#loading.count > 0 && this.#running.length === 0 && this.requests.waiting.length === 0) {
      this.#loading.beginNext();
      await this.#woken();
    }
  }

  async #compute(passes: StepPasses): Promise<void> {
    const { batch, decode, prefill } = passes;
    const { cache, clock } = this.#options;
    try {
      if (!await this.#call('decode', decode)) return;
      const beganMs = clock.now();
      if (!await this.#call('prefill', prefill) || decode.length + prefill.length === 0) return;
      if (prefill.length > 0 && !prefill.hasSelections) {
        cache.prefixes.tiers?.hasPrefilled(prefill.totalTokens, clock.now() - beganMs);
      }
      this.#observed(() => cache.commit(batch, awaited));
      this.totals.steps += 1;
      this.#observer?.committed();
      this.#advance(decode);
      this.#advance(prefill);
    } finally {
      if (decode.isRunning || prefill.isRunning) this.#leave(passes);
      else if (batch.isPrepared && !cache.isClosed) cache.discard(batch);
      this.#admission.removeEnded(); // before what waits for the results continues
    }
  }

  /**
   * Gives up a running pass: the slots of its batch are released, and idle when it is over. The next step has other
   * passes.
   */
  #leave(passes: StepPasses): void {
    const { cache, maxBatch } = this.#options;
    const { batch, decode, prefill } = passes;
    this.#givenUpPasses += 1;
    for (const pass of [decode, prefill]) {
      if (pass.isRunning) for (const generation of pass.generations) generation.keepInput(pass.over!);
    }
    this.#passes = new StepPasses(cache, maxBatch);
    void Promise.all([decode.over, prefill.over]).then(() => {
      if (batch.isPrepared && !cache.isClosed) cache.discard(batch);
      this.#givenUpPasses -= 1;
      this.#admission.reopen();
      this.changed.raise();
    });
    // of the other pass in the batch
    for (const generation of this.#running.all) if (!generation.hasEnded) this.requests.preempt(generation);
  }

  /** Resolves when there is reason for another step. */
  #woken(): Promise<void> {
    return new Promise((resolve) => {
      this.changed.once(resolve);
    });
  }

  /** Notes that there is reason for another step. */
  #wake(): void {
    this.#admission.unblock();
    this.changed.raise();
  }

  /** Puts back requests that lost their slots (`prefixes.reset` with `preempt`). Those that have ended run no more. */
  #requeueLost(): void {
    let isChanged = false;
    for (const generation of this.#running.all) {
      if (!generation.hasEnded && !generation.sequence!.isReleased) continue;
      if (!generation.hasEnded) this.requests.preempt(generation);
      isChanged = true;
    }
    if (isChanged) this.#admission.removeEnded();
  }

  /**
   * Makes room for the step, preempting the last in order as long as there is none. Returns false when there is nothing
   * to run.
   */
  #prepare(): boolean {
    const { cache, prefill } = this.#options;
    this.#requeueLost(); // functions of requests and of the options may have ended some, or taken their slots away
    while (this.#running.length > 0) {
      this.#passes.fill(this.#running.all, prefill);
      try {
        this.#observed(() => withRetries(() => cache.prepare(this.#passes.batch)));
        return true;
      } catch (error) {
        if (!isKvError(error) || error.recovery === 'restart' || error.code === 'KV_CLOSED') throw error;
        const last = this.#running.last!; // alone it waits for other users of the cache
        const canWait = error.recovery === 'free' || error.code === 'KV_WORK_QUEUED';
        if (canWait && (this.#running.length > 1 || !last.isStuck)) this.#admission.preempt(last);
        else this.#failTogether(this.#running.all, error);
      }
    }
    return false;
  }

  /**
   * Has a pass computed and its next tokens chosen; empties one that no request needs any more, and that was not
   * computed. Returns false when it failed, and the step does not count.
   */
  async #call(call: EngineCall, pass: Pass): Promise<boolean> {
    if (pass.length === 0) return true;
    try {
      if (this.#isNeeded(pass)) await this.#engine.run(call, pass);
      else this.#empty(pass);
      return true;
    } catch (error) {
      if (pass.isRunning) { // given up: its slots stay out of use until it is over
        for (const generation of pass.generations) this.requests.fail(generation, error as Error);
        pass.drop(error as Error);
        return false;
      }
      if (pass.hasEnded) { // none of its requests is left to be told; the other pass of the step goes on
        this.#empty(pass);
        return true;
      }
      this.#options.cache.discard(this.#passes.batch); // first: a prepared sequence would retire only with its batch
      // An engine that met a slot which was taken away meanwhile is not to blame: the pass is run again without it.
      if (!pass.sequences.some((sequence) => sequence.isReleased)) this.#failTogether(pass.generations, error as Error);
      return false;
    }
  }

  /** Takes a pass whose requests have ended out of its step: a commit leaves released sequences out. */
  #empty(pass: Pass): void {
    for (const generation of pass.generations) generation.release();
    pass.clear();
    this.#admission.reopen();
  }

  /** Counts what was computed: lengths, shares, and the next token of each request with no token left to compute. */
  #advance(pass: Pass): void {
    const nowMs = this.#options.clock.now();
    for (let index = 0; index < pass.length; index += 1) {
      const generation = pass.generations[index]!;
      if (generation.sequence?.isReleased !== false) continue; // a lost slot: `#requeueLost` puts it back
      if (generation.hasEnded) {
        generation.forgetPass();
        continue;
      }
      // its text is computed, then, whatever was made of the rest
      if (generation.sequence.selection?.failure !== undefined) {
        this.requests.preempt(generation);
        continue;
      }
      this.requests.advance(generation, pass.keptLogits[index]);
      if (pass.wantsLogits[index] === 0) continue;
      const error = pass.errors[index];
      if (error !== undefined && saysNotNumbers(error)) {
        this.#distrust(generation, error);
      } else if (error === undefined) {
        if (generation.distrustedTokens > 0) this.#recovered(generation);
        if (generation.hasEnded) continue; // a subscriber of `virtual-kv:bad-logits` has ended it
        this.requests.accept(generation, pass.nextTokens[index]!, pass.logProbabilities[index], nowMs);
      } else {
        generation.takeBack();
        this.requests.fail(generation, error);
      }
    }
  }

  /**
   * Logits of a request were not numbers: nothing that it has computed stays cached. Where it has found text, that may
   * be why: it is computed once more without.
   */
  #distrust(generation: Generation, error: Error): void {
    const { cache } = this.#options;
    const { caching, cachedTokens, foundTokens, knownPrompt } = generation;
    this.totals.badLogits += 1;
    generation.takeBack();
    if (caching === 'read-write' || caching === 'write') cache.prefixes.dropComputed(knownPrompt, cachedTokens);
    const isTriedAgain = foundTokens > 0 && caching !== 'off';
    publishBadLogits({ cache, generation, outcome: isTriedAgain ? 'computed-again' : 'failed' });
    if (!isTriedAgain) {
      this.requests.fail(generation, error);
      return;
    }
    generation.distrustedTokens = foundTokens;
    this.requests.preempt(generation);
  }

  /** Without the text that it had found, a request's logits are numbers: that text is dropped. */
  #recovered(generation: Generation): void {
    const { cache } = this.#options;
    this.totals.recoveredRequests += 1;
    cache.prefixes.dropFound(generation.knownPrompt, generation.distrustedTokens);
    publishBadLogits({ cache, generation, outcome: 'recovered' });
    generation.distrustedTokens = 0;
  }

  #observed(call: () => void): void {
    this.#observer?.enter();
    try {
      call();
    } finally {
      this.#observer?.leave();
    }
  }

  #failTogether(generations: readonly Generation[], error: Error): void {
    for (const generation of generations) this.requests.fail(generation, error);
    this.#admission.removeEnded();
  }
}
