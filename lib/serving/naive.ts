// NaiveScheduler: one request at a time, in the order given: its prompt in chunks, then token by token. The plainest thing
// that is right: what the others are compared with, and enough for a command line. The prefix cache helps it as it helps
// them.

import { setImmediate } from 'node:timers/promises';

import { isKvError } from '../base/errors.js';
import type { Batch } from '../cache/batch.js';
import { AdmissionControl } from './admission-control.js';
import { withRetries } from './driver-retries.js';
import { EngineCalls } from './engine-calls.js';
import { Generation, type GenerationResult } from './generation.js';
import { OtherUsers } from './other-users.js';
import { OutcomeCollector, type GenerationOutcome } from './outcome.js';
import { Pass } from './pass.js';
import { RequestLife } from './request-life.js';
import { checkFits, checkRequests, readRequest, type GenerationRequest } from './request.js';
import { readSchedulerOptions, type ReadSchedulerOptions, type SchedulerOptions } from './scheduler-options.js';
import { countStart, noTotals, type ServingTotals } from './totals.js';

/** What a request computes with; a new one where its pass was given up. */
interface Lane {
  readonly batch: Batch;
  readonly pass: Pass;
}

/** Serves requests one after the other: the simplest schedule, to compare others with. */
export class NaiveScheduler {
  readonly #options: ReadSchedulerOptions;
  readonly #admission: AdmissionControl;
  readonly #totals = noTotals();
  readonly #engine: EngineCalls;

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: SchedulerOptions) {
    this.#options = readSchedulerOptions('NaiveScheduler', options);
    this.#admission = new AdmissionControl(this.#options);
    this.#engine = new EngineCalls({ ...this.#options, totals: this.#totals });
  }

  /** Sums since it was made. */
  get totals(): Readonly<ServingTotals> {
    return this.#totals;
  }

  /**
   * Runs the requests one after the other; yields how each ended. Rejects when the cache cannot go on (lost driver, closed),
   * and for wrong options of a request, whose index the error names, when its turn comes. Leaving the loop early leaves the others
   * undone.
   */
  async *run(requests: Iterable<GenerationRequest>): AsyncGenerator<GenerationOutcome, void, undefined> {
    const { cache, vocabularyTokens, clock } = this.#options;
    const owner = 'NaiveScheduler.run';
    const given = checkRequests(owner, requests);
    const outcomes = new OutcomeCollector();
    const others = new OtherUsers(cache, clock);
    let lane = this.#newLane();
    let index = 0;
    for (const options of given) {
      const request = readRequest(owner, options, vocabularyTokens, index);
      const listener = outcomes.listener(index);
      const generation = new Generation({ request, arrival: index, nowMs: clock.now(), listener });
      const life = new RequestLife(generation, clock, () => {
        others.stop();
        this.#engine.hearEnd();
      });
      try {
        checkFits(request, cache.layout, cache.pool);
        const result = await this.#generate(life, lane, others);
        this.#totals.completedRequests += 1;
        listener.done(result);
      } catch (error) {
        if (isKvError(error) && (error.recovery === 'restart' || error.code === 'KV_CLOSED')) throw error;
        this.#totals.failedRequests += 1;
        listener.failed(error as Error);
      } finally {
        life.close();
        generation.release();
        if (lane.batch.isPrepared) lane = this.#newLane(); // its pass was given up
      }
      index += 1;
      yield* outcomes.take();
    }
  }

  #newLane(): Lane {
    return { batch: this.#options.cache.createBatch(1), pass: new Pass(1) };
  }

  async #generate(life: RequestLife, lane: Lane, others: OtherUsers): Promise<GenerationResult> {
    const { generation } = life;
    for (;;) {
      life.check();
      const token = generation.sequence === undefined ? await this.#start(life, others) : await this.#step(life, lane);
      const before = generation.generatedTokens;
      const result = token === undefined ? undefined : generation.accept(token, this.#options.clock.now());
      this.#totals.generatedTokens += generation.generatedTokens - before;
      if (result !== undefined) return result;
    }
  }

  /**
   * Leases a slot; returns the first token where the whole text was cached with its last logits. While others hold what it
   * needs, it waits instead.
   */
  async #start({ generation }: RequestLife, others: OtherUsers): Promise<number | undefined> {
    const stall = this.#engine.stall();
    if (stall !== undefined) throw stall;
    if (others.areInLine) await setImmediate(); // they look first
    try {
      generation.start(this.#admission.lease(generation));
    } catch (error) {
      if (!isKvError(error) || error.recovery !== 'free') throw error;
      const refusal = this.#admission.refusalOf(generation, error, others);
      if (refusal !== undefined) throw refusal;
      others.holdUp(error);
      await others.released();
      return undefined;
    }
    countStart(this.#totals, generation);
    const token = this.#engine.nextOfCached(generation);
    if (token !== undefined) this.#totals.skippedPrefills += 1;
    return token;
  }

  /** Computes the generation's next tokens; returns the token behind them once its text is computed. */
  async #step(life: RequestLife, { batch, pass }: Lane): Promise<number | undefined> {
    const { cache, prefillTokensPerStep } = this.#options;
    const { generation } = life;
    const sequence = generation.sequence!;
    if (sequence.isReleased) return this.#giveUp(generation);
    const call = generation.remainingPrefillTokens === 0 ? 'decode' : 'prefill';
    generation.passTokens = Math.min(generation.remainingTokens, prefillTokensPerStep);
    batch.clear();
    batch.add(sequence, generation.passTokens);
    pass.clear();
    pass.add(generation);
    try {
      withRetries(() => cache.prepare(batch));
    } catch (error) { // it waits for others, unless it has done so already
      if (!isKvError(error) || error.recovery !== 'free' || generation.isStuck) throw error;
      return this.#giveUp(generation);
    }
    try {
      await life.orEnded(this.#engine.run(call, pass));
      cache.commit(batch);
    } catch (error) {
      if (generation.hasEnded || !sequence.isReleased || cache.isClosed) throw error; // else it met a slot that was taken away meanwhile
    } finally {
      if (pass.isRunning) void pass.over!.then(() => { this.#discard(batch); });
      else this.#discard(batch);
      await setImmediate(); // for signals and timers, where the engine answers at once
    }
    if (sequence.isReleased) return this.#giveUp(generation);
    this.#totals.steps += 1;
    generation.advance(pass.keptLogits[0]);
    const error = pass.errors[0];
    if (error !== undefined) {
      generation.takeBack();
      throw error;
    }
    return generation.remainingTokens === 0 ? pass.nextTokens[0] : undefined;
  }

  #discard(batch: Batch): void {
    const { cache } = this.#options;
    if (batch.isPrepared && !cache.isClosed) cache.discard(batch);
  }

  /** It lost its slot (`prefixes.reset` with `preempt`), or others have what it needs: it starts again, with what it has generated. */
  #giveUp(generation: Generation): undefined {
    generation.giveUp();
    this.#totals.preemptions += 1;
  }
}
