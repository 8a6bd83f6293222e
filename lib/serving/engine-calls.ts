// EngineCalls: how a scheduler calls its engine: one pass at a time, also where several schedulers, or runs, have the
// same engine; waits for the answer, at most `passTimeoutMs`; takes the time; has the next token of every sequence
// chosen; and turns what went wrong into an error of the catalogue. The cache knows of each pass until it is really
// over.
//
// Invariant: an engine has at most one turn. It lasts until the engine has answered, however long its caller waits;
// passes behind one that was given up fail instead of waiting.

import { createError, isKvError, type ErrorDetails } from '../base/errors.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import { ChangeSignal, nextChange } from '../device/wait.js';
import { isFloat32Array, lengthOf } from '../base/typed-arrays.js';
import type { ChosenToken } from './batch-sampler.js';
import { EngineAnswer, type EngineCall } from './engine-answer.js';
import type { Engine, EngineOutput } from './engine.js';
import type { Generation } from './generation.js';
import type { Clock } from './scheduler-options.js';
import type { ServingTimes } from './serving-times.js';
import type { Pass } from './step-passes.js';
import type { ServingTotals } from './open-requests.js';
import { TokenChoice } from './token-choice.js';
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

/** Whether an engine's passes end. */
export interface EngineState {
  /** Ms since its running pass began; 0: none runs. */
  readonly runningMs: number;
  /** Whether a pass that was given up is not over. */
  readonly isStalled: boolean;
  /** Whether the last pass that ended has failed. */
  readonly hasFailed: boolean;
}

/** The running pass of each engine that has one. */
const turns = new WeakMap<Engine, Turn>();

export class EngineCalls {
  readonly #options: EngineCallsOptions;
  readonly #answer: EngineAnswer;
  readonly #choice: TokenChoice;
  /** A request of the scheduler has ended. */
  readonly #ended = new ChangeSignal();
  /** When the running pass began; NaN: none runs. */
  #beganMs = Number.NaN;
  #hasFailed = false;

  constructor(options: EngineCallsOptions) {
    this.#options = options;
    this.#answer = new EngineAnswer(options.vocabularyTokens);
    this.#choice = new TokenChoice(options.vocabularyTokens);
  }

  /**
   * Has the engine compute a pass, and chooses the next tokens at once: its logits are its own again with its next
   * call. Rejects with KV_ENGINE_FAILED, its cause what the engine threw, and with KV_ENGINE_STALLED, while the engine
   * may still compute until `pass.over`; with KV_ABORTED when all requests of the pass end before its turn. What is
   * wrong with one sequence only is in `pass.errors`.
   */
  async run(call: EngineCall, pass: Pass): Promise<void> {
    const { engine, cache } = this.#options;
    for (let turn = turns.get(engine); turn !== undefined; turn = turns.get(engine)) {
      await this.#waitBehind(turn, call, pass);
    }
    const turn: Turn = { stalled: undefined, changed: new ChangeSignal() };
    turns.set(engine, turn);
    const leavePasses = cache.lifetime.enterPass();
    let setOver = (): void => {};
    pass.over = new Promise((resolve) => { setOver = resolve; });
    pass.isRunning = true;
    const finish = (): void => {
      pass.isRunning = false;
      this.#beganMs = Number.NaN;
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
      pass.isAnswered = true;
      this.#answer.take(call, pass, output);
      this.#writeSide(call, pass);
      this.#choice.chooseAll(call, pass, this.#answer); // before the next pass of the engine, which has the same logits
      this.#hasFailed = false;
    } catch (error) {
      this.#hasFailed ||= !pass.signal.aborted; // it may stop where no request needs it any more
      throw error;
    } finally {
      if (!isLeft) finish();
    }
  }

  /** The error of requests that need the engine now, while a pass that was given up is not over; else undefined. */
  stall(): Error | undefined {
    const stalled = turns.get(this.#options.engine)?.stalled;
    return stalled === undefined ? undefined : createError('KV_ENGINE_STALLED', stalled);
  }

  /** Throws what the clock throws. */
  get state(): EngineState {
    const runningMs = Number.isNaN(this.#beganMs) ? 0 : this.#options.clock.now() - this.#beganMs;
    return { runningMs, isStalled: this.stall() !== undefined, hasFailed: this.#hasFailed };
  }

  /** Notes that a request has ended: a pass that waits for its turn may have none left. */
  noteEnd(): void {
    this.#ended.raise();
  }

  /**
   * The next token of a generation all of whose text was cached, from the logits that were kept at its end. Undefined:
   * its last token is to be computed. Throws what its sampler throws.
   */
  nextOfCached(generation: Generation): ChosenToken | undefined {
    const { sequence, textTokens } = generation;
    if (generation.length < textTokens) return undefined;
    const logits = sequence!.keptValue;
    if (isFloat32Array(logits) && lengthOf(logits) === this.#options.vocabularyTokens) {
      const chosen = this.#choice.chooseOne(new Float32Array(logits), generation); // a copy: a sampler may change them
      if (!Number.isNaN(logits[chosen.token])) return chosen;
    }
    sequence!.truncate(textTokens - 1); // another user of the cache has kept a value of its own, or no numbers
    generation.length = textTokens - 1;
    return undefined;
  }

  /** Waits until a turn is over; another scheduler may take the next. Throws what ends a pass before its turn. */
  async #waitBehind(turn: Turn, call: EngineCall, pass: Pass): Promise<void> {
    const stall = this.stall();
    if (stall !== undefined) throw stall;
    await nextChange({ signals: [turn.changed, this.#ended], mustAsk: () => false }, 0, () => () => {});
    if (pass.hasEnded) throw createError('KV_ABORTED', { operation: 'generating' });
    if (pass.sequences.some((sequence) => sequence.isReleased)) { // its memory may be gone
      throw createError('KV_ENGINE_FAILED', {
        call, sequences: pass.length, problem: 'a slot was taken away before its turn',
      });
    }
  }

  /**
   * The engine's answer, boxed: resolving a promise with it would read its `then` again. Calls `leave` where it rejects
   * although the engine has not answered.
   */
  async #compute(
    call: EngineCall, pass: Pass, turn: Turn, leave: (answered: Promise<unknown>) => void,
  ): Promise<{ readonly output: EngineOutput }> {
    const { engine, clock, totals, times, passTimeoutMs } = this.#options;
    const startMs = clock.now();
    this.#beganMs = startMs;
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
      throw createError(
        'KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'it threw an error' }, { cause: error });
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

  /**
   * Keeps the side rows of an answer; they count from the commit on. Wrong ones fail the pass: which of its sequences
   * they belong to is not known.
   */
  #writeSide(call: EngineCall, pass: Pass): void {
    const { side } = this.#answer;
    if (side === undefined) return;
    try {
      this.#options.cache.writeSideRows(pass.places, side as SideRowsByName);
    } catch (error) {
      if (isKvError(error) && error.recovery !== 'fix') throw error; // the driver's
      throw createError(
        'KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'its side rows are not what the cache keeps' },
        { cause: error });
    }
  }
}

function isPromise(answer: unknown): boolean {
  return typeof answer === 'object' && answer !== null
    && typeof (answer as Partial<Promise<unknown>>).then === 'function';
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
