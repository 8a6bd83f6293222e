// Generation: where one request stands: waiting, computing its prompt, decoding, done. Schedulers alone change it. It
// outlives a preemption: what was generated until then stays, becomes part of what is computed again, and is found in the
// cache where it still is.
//
// Invariant: `length` tokens of the text have K and V in the sequence; the last known token never has, since its logits
// are what comes next.

import { createError } from '../base/errors.js';
import type { Sequence } from '../cache/sequence.js';
import type { OrderedRequest } from './request-order.js';
import type { StepMember } from './step-plan.js';
import type { ReadRequest } from './request.js';
import type { TenantShare } from './tenant-shares.js';

/** Why an answer ended: `length`: it has `maxNewTokens` tokens. `stop`: a stop token came. */
export type FinishReason = 'length' | 'stop';

/** What a request was answered with. */
export interface GenerationResult {
  /** The answer, without a stop token. */
  readonly tokens: Int32Array;
  /** Why it ended: `length` after `maxNewTokens`, `stop` at a stop token. */
  readonly finishReason: FinishReason;
  /** The token that ended it; undefined with `length`. */
  readonly stopToken: number | undefined;
  /** Tokens of its prompt. */
  readonly promptTokens: number;
  /** Tokens of the prompt that came from the prefix cache when it was first admitted. */
  readonly cachedTokens: number;
  /** How often it had to give way. */
  readonly preemptions: number;
  /** From submission to the first token, and to the end. */
  readonly firstTokenMs: number;
  /** Milliseconds from its submission to its end. */
  readonly totalMs: number;
}

/** Whoever asked for it. Called by the scheduler between passes; must not throw. */
export interface GenerationListener {
  token?(token: number): void;
  done(result: GenerationResult): void;
  failed(error: Error): void;
}

export interface GenerationOptions {
  readonly request: ReadRequest;
  readonly arrival: number;
  readonly nowMs: number;
  readonly listener: GenerationListener;
}

export class Generation implements OrderedRequest, StepMember {
  readonly request: ReadRequest;
  readonly arrival: number;
  readonly listener: GenerationListener;
  /** Prompt and answer; the first `textTokens` entries count. */
  text: Int32Array;
  textTokens: number;
  /** The lease of a slot; undefined while waiting. */
  sequence: Sequence | undefined;
  /** Valid tokens of the sequence, kept here so that a step asks nobody. */
  length = 0;
  passTokens = 0;
  cachedTokens = 0;
  preemptions = 0;
  /** Tokens that were computed when it last gave way. */
  lostTokens = 0;
  /** Its tenant's account; undefined where nobody keeps one. */
  share: TenantShare | undefined;
  /** Somebody who is computing the start of its text: it waits until he has computed `awaitedTokens` of it. */
  leader: Generation | undefined;
  awaitedTokens = 0;
  /** Its listener has heard how it ended; what it holds goes when the pass that uses it is over. */
  hasEnded = false;
  isWaiting = false;
  /** It waits until others leave it more room. */
  isHeldUp = false;
  /** In the scheduler's clock; Infinity: it has none. */
  readonly deadlineAtMs: number;
  /** Its place among the deadlines; -1: it has none there. */
  deadlineIndex = -1;
  readonly #submittedMs: number;
  #firstTokenMs = -1;
  /** Tokens of its text when it last gave way. */
  #gaveWayAtTokens = -1;

  constructor({ request, arrival, nowMs, listener }: GenerationOptions) {
    this.request = request;
    this.arrival = arrival;
    this.listener = listener;
    this.text = request.tokens;
    this.textTokens = request.tokens.length;
    this.#submittedMs = nowMs;
    this.deadlineAtMs = nowMs + (request.deadlineMs ?? Infinity);
  }

  get urgency(): number {
    return this.request.urgency;
  }

  get tenant(): string | undefined {
    return this.request.tenant;
  }

  get tenantTokens(): number {
    return this.share?.tokens ?? 0;
  }

  get promptTokens(): number {
    return this.request.tokens.length;
  }

  get generatedTokens(): number {
    return this.textTokens - this.promptTokens;
  }

  /** Tokens of the text without K and V. */
  get remainingTokens(): number {
    return this.textTokens - this.length;
  }

  /** A single remaining token is decoding: also the last of a prompt whose others were cached. */
  get remainingPrefillTokens(): number {
    return this.remainingTokens === 1 ? 0 : this.remainingTokens;
  }

  /** Whether the logits behind its text are those of a prompt, which another request may have, and can be stored with it. */
  get keepsLogits(): boolean {
    const { caching } = this.request;
    return this.generatedTokens === 0 && (caching === 'read-write' || caching === 'write');
  }

  /** Whether it gave way and has not come further since: doing so again would help nobody. */
  get isStuck(): boolean {
    return this.#gaveWayAtTokens === this.textTokens;
  }

  /** Whether `other` may find this one's text in the cache. */
  sharesWith(other: Generation): boolean {
    const { tenant, salt, adapter, caching } = this.request;
    const its = other.request;
    return tenant === its.tenant && salt === its.salt && adapter === its.adapter
      && (caching === 'read-write' || caching === 'write') && (its.caching === 'read-write' || its.caching === 'read');
  }

  /** What it ends with when somebody wants it no more. */
  abortError(reason?: unknown): Error {
    return createError('KV_ABORTED', { operation: 'generating' }, { cause: reason });
  }

  /** What it ends with when its deadline has passed. */
  lateError(): Error {
    const { deadlineMs = Infinity, maxNewTokens } = this.request;
    return createError('KV_DEADLINE_EXCEEDED', { deadlineMs, generatedTokens: this.generatedTokens, maxNewTokens });
  }

  /** It has a slot; what is cached of its text is valid there. */
  start(sequence: Sequence): void {
    this.sequence = sequence;
    this.length = sequence.length;
    this.leader = undefined;
    if (this.preemptions === 0) this.cachedTokens = sequence.cachedTokens;
  }

  /** Gives its slot back, if it has one and nobody has released it. */
  release(): void {
    const { sequence } = this;
    this.sequence = undefined;
    this.length = 0;
    this.passTokens = 0;
    if (sequence !== undefined && !sequence.isReleased) sequence.release();
  }

  /** It has to start again later: what it has generated stays, and its rows may still be cached then. */
  giveUp(): void {
    this.lostTokens = this.length;
    this.#gaveWayAtTokens = this.textTokens;
    this.release();
    this.preemptions += 1;
  }

  /** Its next tokens are computed and valid; `keptLogits` are those behind a prompt, if they are worth keeping. */
  advance(keptLogits: Float32Array | undefined): void {
    this.length += this.passTokens;
    if (keptLogits !== undefined) this.sequence!.keepValue(keptLogits);
  }

  /** What it computed last gave no token: nobody shall find it in the cache. */
  takeBack(): void {
    this.sequence!.truncate(this.length - this.passTokens);
  }

  /** The next token of the answer. Returns its result when it is the last; else the sequence hears of the token. */
  accept(token: number, nowMs: number): GenerationResult | undefined {
    if (this.#firstTokenMs < 0) this.#firstTokenMs = nowMs;
    const { stopTokens, maxNewTokens } = this.request;
    if (stopTokens.has(token)) return this.#result('stop', token, nowMs);
    if (this.textTokens === this.text.length) this.#enlarge();
    this.text[this.textTokens] = token;
    this.textTokens += 1;
    this.listener.token?.(token);
    if (this.generatedTokens >= maxNewTokens) return this.#result('length', undefined, nowMs);
    this.sequence!.append(token);
    return undefined;
  }

  #result(finishReason: FinishReason, stopToken: number | undefined, nowMs: number): GenerationResult {
    return {
      tokens: this.text.slice(this.promptTokens, this.textTokens), finishReason, stopToken, promptTokens: this.promptTokens,
      cachedTokens: this.cachedTokens, preemptions: this.preemptions, firstTokenMs: this.#firstTokenMs - this.#submittedMs,
      totalMs: nowMs - this.#submittedMs,
    };
  }

  #enlarge(): void {
    const most = this.promptTokens + this.request.maxNewTokens;
    const text = new Int32Array(Math.min(most, this.textTokens + Math.max(64, this.generatedTokens)));
    text.set(this.text);
    this.text = text;
  }
}
