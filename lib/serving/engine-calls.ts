// EngineCalls: how a scheduler calls its engine: one pass at a time, also where several schedulers, or runs, have the same engine;
// waits for the answer, at most `passTimeoutMs`; takes the time; chooses the next token of every sequence; and turns what went
// wrong into an error of the catalogue. The cache knows of each pass until it is really over.
//
// Invariant: an engine has at most one turn. It lasts until the engine has answered, however long its caller waits; passes behind
// one that was given up fail instead of waiting.

import { createError, isKvError, type ErrorDetails } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import { describe } from '../base/phrases.js';
import { ChangeSignal } from '../device/change-signal.js';
import type { KvCache } from '../cache/kv-cache.js';
import { nextChange } from '../cache/wait.js';
import { isFloat32Array, lengthOf } from '../base/typed-arrays.js';
import { BatchSampler } from './batch-sampler.js';
import { EngineAnswer, type EngineCall } from './engine-answer.js';
import type { Engine, EngineOutput } from './engine.js';
import type { Generation } from './generation.js';
import { asError, type Clock } from './scheduler-options.js';
import type { ServingTimes } from './serving-times.js';
import type { Pass } from './step-passes.js';
import type { ServingTotals } from './open-requests.js';
import type { SideRowsByName } from '../side/side-rows.js';

export type { EngineCall } from './engine-answer.js';

export interface EngineCallsOptions {
  readonly cache: KvCache;
  readonly engine: Engine;
  readonly vocabularyTokens: number;
  /** Ms after which a pass is given up; Infinity: never. */
  readonly passTimeoutMs: number;
  readonly totals: ServingTotals;
  readonly times: ServingTimes;
  readonly clock: Clock;
}

interface Turn {
  /** Set when the pass was given up. */
  stalled: ErrorDetails['KV_ENGINE_STALLED'] | undefined;
  /** The pass is over, or was given up. */
  readonly changed: ChangeSignal;
}

/** The running pass of each engine that has one. */
const turns = new WeakMap<Engine, Turn>();

export class EngineCalls {
  readonly #options: EngineCallsOptions;
  readonly #answer: EngineAnswer;
  readonly #sampler: BatchSampler;
  /** [choice]: its place in the pass. */
  readonly #places: number[] = [];
  /** A request of the scheduler has ended. */
  readonly #ended = new ChangeSignal();

  constructor(options: EngineCallsOptions) {
    this.#options = options;
    this.#answer = new EngineAnswer(options.vocabularyTokens);
    this.#sampler = new BatchSampler(options);
  }

  /**
   * Has the engine compute a pass, and chooses the next tokens at once: its logits are its own again with its next call.
   * Rejects with KV_ENGINE_FAILED, its cause what the engine threw, and with KV_ENGINE_STALLED, while the engine may still
   * compute until `pass.over`; with KV_ABORTED when all requests of the pass end before its turn. What is wrong with one
   * sequence only is in `pass.errors`.
   */
  async run(call: EngineCall, pass: Pass): Promise<void> {
    const { engine, cache } = this.#options;
    for (let turn = turns.get(engine); turn !== undefined; turn = turns.get(engine)) await this.#waitBehind(turn, call, pass);
    const turn: Turn = { stalled: undefined, changed: new ChangeSignal() };
    turns.set(engine, turn);
    const leavePasses = cache.lifetime.enterPass();
    let setOver = (): void => {};
    pass.over = new Promise((resolve) => { setOver = resolve; });
    pass.isRunning = true;
    const finish = (): void => {
      pass.isRunning = false;
      leavePasses();
      turns.delete(engine);
      turn.changed.raise();
      setOver();
    };
    let isLeft = false;
    const leave = (answered: Promise<unknown>): void => {
      isLeft = true;
      void answered.then(finish, finish);
    };
    try {
      const { output } = await this.#compute(call, pass, turn, leave);
      this.#answer.take(call, pass, output);
      this.#writeSide(call, pass);
      this.#chooseAll(call, pass); // before the next pass of the engine, which has the same logits
    } finally {
      if (!isLeft) finish();
    }
  }

  /** The error of requests that need the engine now, while a pass that was given up is not over; else undefined. */
  stall(): Error | undefined {
    const stalled = turns.get(this.#options.engine)?.stalled;
    return stalled === undefined ? undefined : createError('KV_ENGINE_STALLED', stalled);
  }

  /** Notes that a request has ended: a pass that waits for its turn may have none left. */
  noteEnd(): void {
    this.#ended.raise();
  }

  /**
   * The next token of a generation all of whose text was cached, from the logits that were kept at its end. Undefined: its
   * last token is to be computed. Throws what its sampler throws.
   */
  nextOfCached(generation: Generation): number | undefined {
    const { sequence, textTokens } = generation;
    if (generation.length < textTokens) return undefined;
    const logits = sequence!.keptValue;
    if (isFloat32Array(logits) && lengthOf(logits) === this.#options.vocabularyTokens) {
      return this.#nextOfKept(new Float32Array(logits), generation); // a copy: a sampler may change them
    }
    sequence!.truncate(textTokens - 1); // another user of the cache has kept a value of its own
    generation.length = textTokens - 1;
    return undefined;
  }

  #nextOfKept(logits: Float32Array, generation: Generation): number {
    if (generation.rules === undefined) return this.#sample(logits, generation, 'prefill');
    this.#sampler.begin(1, 0);
    this.#sampler.add(0, generation.rules, generation);
    this.#sampler.choose(logits);
    return this.#sampler.tokens[0]!;
  }

  /** Waits until a turn is over; another scheduler may take the next. Throws what ends a pass before its turn. */
  async #waitBehind(turn: Turn, call: EngineCall, pass: Pass): Promise<void> {
    const stall = this.stall();
    if (stall !== undefined) throw stall;
    await nextChange({ signals: [turn.changed, this.#ended], mustAsk: () => false }, 0, () => () => {});
    if (pass.hasEnded) throw createError('KV_ABORTED', { operation: 'generating' });
    if (pass.sequences.some((sequence) => sequence.isReleased)) { // its memory may be gone
      throw createError('KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'a slot was taken away before its turn' });
    }
  }

  /**
   * The engine's answer, boxed: resolving a promise with it would read its `then` again. Calls `leave` where it rejects although the
   * engine has not answered.
   */
  async #compute(call: EngineCall, pass: Pass, turn: Turn, leave: (answered: Promise<unknown>) => void): Promise<{ readonly output: EngineOutput }> {
    const { engine, clock, totals, times, passTimeoutMs } = this.#options;
    const startMs = clock.now();
    try {
      const answer = call === 'prefill' ? engine.prefill(pass) : engine.decode(pass);
      if (passTimeoutMs === Infinity || !isPromise(answer)) return { output: await answer };
      const answered = Promise.resolve(answer);
      let isSettled = false;
      try {
        isSettled = await isSettledWithin(answered, passTimeoutMs, clock);
      } finally {
        if (!isSettled) leave(answered);
      }
      if (isSettled) return { output: await answered };
    } catch (error) {
      throw createError('KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'it threw an error' }, { cause: error });
    } finally {
      const tookMs = clock.now() - startMs;
      totals[`${call}Ms`] += tookMs;
      times[call].observe(tookMs);
    }
    const stalled = { call, sequences: pass.length, timeoutMs: passTimeoutMs };
    turn.stalled = stalled;
    turn.changed.raise();
    throw createError('KV_ENGINE_STALLED', stalled);
  }

  /** Keeps the side rows of an answer; they count from the commit on. Wrong ones fail the pass: which of its sequences they belong to is not known. */
  #writeSide(call: EngineCall, pass: Pass): void {
    const { side } = this.#answer;
    if (side === undefined) return;
    try {
      this.#options.cache.writeSideRows(pass.places, side as SideRowsByName);
    } catch (error) {
      if (isKvError(error) && error.recovery !== 'fix') throw error; // the driver's
      throw createError('KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'its side rows are not what the cache keeps' }, { cause: error });
    }
  }

  #chooseAll(call: EngineCall, pass: Pass): void {
    const hasTokens = this.#answer.hasTokens;
    if (!hasTokens) this.#chooseNatively(call, pass);
    for (let index = 0; index < pass.length; index += 1) {
      const generation = pass.generations[index]!;
      if (pass.wantsLogits[index] === 0 || generation.hasEnded || (!hasTokens && generation.rules !== undefined)) continue;
      try {
        pass.nextTokens[index] = this.#next(call, index, pass);
      } catch (error) { // what the sampler of a request throws
        pass.errors[index] = error as Error;
      }
    }
  }

  /** Chooses for all requests whose samplers native code can take over, in one call. */
  #chooseNatively(call: EngineCall, pass: Pass): void {
    const sampler = this.#sampler;
    sampler.begin(pass.length, 0);
    for (let index = 0; index < pass.length; index += 1) {
      const generation = pass.generations[index]!;
      if (pass.wantsLogits[index] === 0 || generation.hasEnded || generation.rules === undefined) continue;
      this.#places[sampler.count] = index;
      sampler.add(index, generation.rules, generation);
    }
    if (sampler.count === 0) return;
    const { logits } = this.#answer;
    if (logits !== undefined) sampler.choose(logits);
    for (let choice = 0; choice < sampler.count; choice += 1) {
      const index = this.#places[choice]!;
      const row = logits && this.#answer.row(index);
      const token = sampler.tokens[choice]!;
      pass.nextTokens[index] = token;
      if (row === undefined) pass.errors[index] = this.#logitsError(call, 'its logits were gone before they were read');
      else if (Number.isNaN(row[token])) pass.errors[index] = this.#logitsError(call, 'its logits are not numbers');
      else if (pass.generations[index]!.keepsLogits) pass.keptLogits[index] = new Float32Array(row);
    }
  }

  #logitsError(call: EngineCall, problem: string): Error {
    return createError('KV_ENGINE_FAILED', { call, sequences: 1, problem });
  }

  #next(call: EngineCall, index: number, pass: Pass): number {
    const generation = pass.generations[index]!;
    if (this.#answer.hasTokens) {
      const token = this.#answer.token(index);
      if (this.#isToken(token)) return token;
      throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem: `token ${describe(token)} is not in its vocabulary` });
    }
    const logits = this.#answer.row(index);
    if (logits === undefined) throw this.#logitsError(call, 'its logits were gone before they were read');
    const kept = generation.keepsLogits ? new Float32Array(logits) : undefined;
    const chosen = this.#sample(logits, generation, call);
    pass.keptLogits[index] = kept; // only now: logits that gave no token are not kept
    return chosen;
  }

  #sample(logits: Float32Array, generation: Generation, call: EngineCall): number {
    const { request, generatedTokens, arrival } = generation;
    let token: unknown;
    try {
      token = request.sampler(logits, generatedTokens, generation.sampledText);
    } catch (error) {
      const operation = `choosing token ${formatNumber(generatedTokens)} of the answer to a prompt of ${formatCount('token', request.tokens.length)}`;
      throw asError(error, 'sampler', { operation, arrivals: [arrival] });
    }
    if (this.#isToken(token)) {
      // Undefined: the engine, or the sampler, has transferred their memory.
      const logit = logits[token];
      if (logit !== undefined && !Number.isNaN(logit)) return token;
      throw this.#logitsError(call, 'its logits are not numbers');
    }
    throw createError('KV_INVALID_OPTION', {
      reason: typeof token === 'number' ? 'range' : 'type', owner: 'GenerationRequest', option: 'sampler',
      expected: `a function that returns a token from 0 to ${this.#options.vocabularyTokens - 1}`, received: token,
    });
  }

  #isToken(token: unknown): token is number {
    return Number.isInteger(token) && (token as number) >= 0 && (token as number) < this.#options.vocabularyTokens;
  }
}

function isPromise(answer: unknown): boolean {
  return typeof answer === 'object' && answer !== null && typeof (answer as Partial<Promise<unknown>>).then === 'function';
}

/** Whether `answered` is resolved or rejected within `timeoutMs`. */
async function isSettledWithin(answered: Promise<unknown>, timeoutMs: number, clock: Clock): Promise<boolean> {
  let cancel = (): void => {};
  try {
    return await new Promise<boolean>((resolve, reject) => {
      const isSettled = (): void => {
        resolve(true);
      };
      answered.then(isSettled, isSettled);
      const startMs = clock.now();
      const wait = (delayMs: number): void => {
        cancel = clock.after(() => {
          try {
            const leftMs = startMs + timeoutMs - clock.now();
            if (leftMs <= 0) resolve(false);
            else wait(leftMs);
          } catch (error) {
            reject(error as Error);
          }
        }, Math.max(1, delayMs));
      };
      wait(timeoutMs);
    });
  } finally {
    cancel();
  }
}
