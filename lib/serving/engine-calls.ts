// EngineCalls: how a scheduler calls its engine: one pass at a time, whoever else has the same engine; waits for the answer,
// for so long at most, takes the time, chooses the next token of every sequence, and says whatever went wrong as an error of the
// catalogue. The cache knows of each pass until it is really over.

import { createError } from '../base/errors.js';
import { describe } from '../base/phrases.js';
import { ChangeSignal } from '../device/change-signal.js';
import type { KvCache } from '../cache/kv-cache.js';
import { nextChange } from '../cache/wait.js';
import { isFloat32Array, lengthOf } from '../base/typed-arrays.js';
import { asError } from './as-error.js';
import type { Clock } from './clock.js';
import { EngineAnswer, type EngineCall } from './engine-answer.js';
import type { Engine, EngineOutput } from './engine.js';
import { beginTurn, giveUpTurn, turnOf, type Turn } from './engine-turns.js';
import type { Generation } from './generation.js';
import type { Pass } from './pass.js';
import type { ServingTotals } from './totals.js';

export type { EngineCall } from './engine-answer.js';

export interface EngineCallsOptions {
  readonly cache: KvCache;
  readonly engine: Engine;
  readonly vocabularyTokens: number;
  /** How long a pass may take; Infinity: for ever. */
  readonly passTimeoutMs: number;
  readonly totals: ServingTotals;
  readonly clock: Clock;
}

export class EngineCalls {
  readonly #options: EngineCallsOptions;
  readonly #answer: EngineAnswer;
  /** Some request has ended. */
  readonly #ended = new ChangeSignal();

  constructor(options: EngineCallsOptions) {
    this.#options = options;
    this.#answer = new EngineAnswer(options.vocabularyTokens);
  }

  /**
   * Has the engine compute a pass, and chooses the next tokens at once: its logits are its own again with its next call.
   * Rejects with KV_ENGINE_FAILED, its cause what the engine threw, and with KV_ENGINE_STALLED, while the engine may still
   * compute until `pass.over`; with KV_ABORTED when nobody wants the pass any more before its turn. What is wrong with one
   * sequence only is in `pass.errors`.
   */
  async run(call: EngineCall, pass: Pass): Promise<void> {
    const { engine, cache } = this.#options;
    while (turnOf(engine) !== undefined) await this.#waitForTurn(call, pass);
    const { turn, end } = beginTurn(engine);
    const leavePasses = cache.lifetime.enterPass();
    let setOver = (): void => {};
    pass.over = new Promise((resolve) => { setOver = resolve; });
    pass.isRunning = true;
    const finish = (): void => {
      pass.isRunning = false;
      leavePasses();
      end();
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
      this.#chooseAll(call, pass); // before the next pass of the engine, which has the same logits
    } finally {
      if (!isLeft) finish();
    }
  }

  /** The error of requests that need the engine now; undefined: it has no pass that was given up and is not over. */
  stall(): Error | undefined {
    const stalled = turnOf(this.#options.engine)?.stalled;
    return stalled === undefined ? undefined : createError('KV_ENGINE_STALLED', stalled);
  }

  /** Some request has ended: nobody may want a pass that waits for its turn. */
  hearEnd(): void {
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
      return this.#sample(new Float32Array(logits), generation, 'prefill'); // a sampler that changes them would change others' answers
    }
    sequence!.truncate(textTokens - 1); // somebody else keeps values of his own in this cache
    generation.length = textTokens - 1;
    return undefined;
  }

  /** Until the engine's pass is over; another scheduler may be faster then. Throws what ends a pass before its turn. */
  async #waitForTurn(call: EngineCall, pass: Pass): Promise<void> {
    const turn = turnOf(this.#options.engine)!;
    const stall = this.stall();
    if (stall !== undefined) throw stall;
    await nextChange({ signals: [turn.changed, this.#ended], mustAsk: () => false }, 0, () => () => {});
    if (pass.isUnwanted) throw createError('KV_ABORTED', { operation: 'generating' });
    if (pass.sequences.some((sequence) => sequence.isReleased)) { // its memory may be gone
      throw createError('KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'a slot was taken away before its turn' });
    }
  }

  /** The engine's answer, boxed: resolving a promise with it would look at it again. Calls `leave` where it rejects although the engine has not answered. */
  async #compute(call: EngineCall, pass: Pass, turn: Turn, leave: (answered: Promise<unknown>) => void): Promise<{ readonly output: EngineOutput }> {
    const { engine, clock, totals, passTimeoutMs } = this.#options;
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
      totals[`${call}Ms`] += clock.now() - startMs;
    }
    const stalled = { call, sequences: pass.length, timeoutMs: passTimeoutMs };
    giveUpTurn(turn, stalled);
    throw createError('KV_ENGINE_STALLED', stalled);
  }

  #chooseAll(call: EngineCall, pass: Pass): void {
    for (let index = 0; index < pass.length; index += 1) {
      if (pass.wantsLogits[index] === 0 || pass.generations[index]!.hasEnded) continue;
      try {
        pass.nextTokens[index] = this.#next(call, index, pass);
      } catch (error) { // what the sampler of a request throws
        pass.errors[index] = error as Error;
      }
    }
  }

  #next(call: EngineCall, index: number, pass: Pass): number {
    const generation = pass.generations[index]!;
    if (this.#answer.hasTokens) {
      const token = this.#answer.token(index);
      if (this.#isToken(token)) return token;
      throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem: `token ${describe(token)} is not in its vocabulary` });
    }
    const logits = this.#answer.row(index);
    if (logits === undefined) throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem: 'its logits were gone before they were read' });
    const kept = generation.keepsLogits ? new Float32Array(logits) : undefined;
    const chosen = this.#sample(logits, generation, call);
    pass.keptLogits[index] = kept; // only now: what gave no token is worth nothing to others
    return chosen;
  }

  #sample(logits: Float32Array, { request, generatedTokens }: Generation, call: EngineCall): number {
    let token: unknown;
    try {
      token = request.sampler(logits, generatedTokens);
    } catch (error) {
      throw asError(error, 'sampler');
    }
    if (this.#isToken(token)) {
      // Undefined: the engine, or the sampler, has given their memory away.
      const logit = logits[token];
      if (logit !== undefined && !Number.isNaN(logit)) return token;
      throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem: 'its logits are not numbers' });
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

/** Whether it is settled, however, in so many ms. */
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
