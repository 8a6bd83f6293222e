// Generation: the state of one request: waiting, computing its prompt, decoding, ended. Only the batching loop changes
// it. It outlives a preemption: the tokens generated until then stay, are computed again with the prompt, and are found
// in the cache where they still are.
//
// Invariant: `length` tokens of the text have K and V in the sequence; the last known token never has, since its logits
// give the next.

import { createError, isKvError } from '../base/errors.js';
import type { HeldText } from '../tiers/transfers.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { Promotion } from '../tiers/promotion.js';
import type { KnownPrompt } from '../kv-cache/prefixes.js';
import type { SelectedText } from '../tiers/selection/selected-text.js';
import type { Sequence, TokenSelection } from '../cache/sequence.js';
import type { PromptItem } from '../prefix/prompt-encoder.js';
import type { HandOver } from '../side/hand-over.js';
import { AnswerText } from './answer-text.js';
import type { FinishReason, GenerationAdmission, GenerationListener, GenerationResult } from './generation-result.js';
import type { TokenLogProbability } from './plain-sampling.js';
import type { OrderedRequest, TenantShare } from './request-order.js';
import type { ReadRequest } from './request.js';
import { randomSeed, rulesOf, type KnownSampler } from './sampling.js';
import { GeneratedText, type SampledText } from './sampled-text.js';
import { asError } from './scheduler-options.js';

export interface GenerationOptions {
  /** Its place among the answers to the same prompt; each has random numbers of its own. Default 0. */
  readonly answer?: number;
  /** In which it will run. */
  readonly cache: KvCache;
  readonly request: ReadRequest;
  readonly arrival: number;
  readonly nowMs: number;
  readonly listener: GenerationListener;
}

export class Generation implements OrderedRequest {
  readonly request: ReadRequest;
  readonly arrival: number;
  readonly listener: GenerationListener;
  /** Prompt and answer; the first `textTokens` entries count. */
  text: Int32Array;
  textTokens: number;
  readonly promptTokens: number;
  /** The lease of a slot; undefined while waiting. */
  sequence: Sequence | undefined;
  /** Valid tokens of the sequence. */
  length = 0;
  /** Its side rows, where it hands some over: while it has a slot, and once it is answered. */
  side: HandOver | undefined;
  /** Tokens that it computes in the running step, as planned. */
  passTokens = 0;
  promotion: Promotion | undefined;
  /** The cache's when it got its slot. */
  namespace = '';
  /**
   * Tokens that it had found cached when its logits were not numbers: it is computed once more without them; 0: it is
   * not.
   */
  distrustedTokens = 0;
  /** What tiers brought for it, until it has a slot. */
  held: HeldText | undefined;
  /** Stored text of which its first sequence is given a part. */
  selected: SelectedText | undefined;
  preemptions = 0;
  /** Undefined until it has got a slot. */
  admission: GenerationAdmission | undefined;
  /** Its tenant's share; undefined before it is enqueued. */
  share: TenantShare | undefined;
  /** Requests for other answers to its prompt, which wait until it is computed. Some may have ended. */
  followers: readonly Generation[] = [];
  /** Whether it is among the followers of another. */
  isFollowing = false;
  /** Tokens that were computed when it last gave its slot back. */
  reachedTokens = 0;
  /** A request that computes the start of its text, or will: it waits until `awaitedTokens` of it are computed. */
  leader: Generation | undefined;
  awaitedTokens = 0;
  /** Told what `releaseInput` throws. */
  onFailure: (error: Error) => void = () => {};
  /** Whether its listener has been told how it ended. What it holds is released when no pass uses it. */
  hasEnded = false;
  isWaiting = false;
  /** Whether it was refused for what other users of the cache hold. */
  isBlocked = false;
  /** Why it cannot start before a budget is raised; undefined: it fits. */
  shortage: Error | undefined;
  /** How its tokens are chosen by native code; undefined: its sampler is called. */
  readonly rules: KnownSampler | undefined;
  /** Its answer as text; undefined unless the request has a tokenizer. */
  readonly answerText: AnswerText | undefined;
  /** [token of the answer]; undefined: they were not asked for. */
  readonly logProbabilities: TokenLogProbability[] | undefined;
  /** Of its random numbers, the same after a preemption. */
  readonly seed: number;
  /** In the scheduler's clock; Infinity: it has none. */
  readonly deadlineAtMs: number;
  /** Its place among the requests that wait in order, and among these by length; -1: none. */
  queueIndex = -1;
  lengthIndex = -1;
  /** Its place among the deadlines; -1: none. */
  deadlineIndex = -1;
  /** In the scheduler's clock. */
  readonly submittedMs: number;
  /** When it got its last token; NaN: it has none. */
  lastTokenMs = Number.NaN;
  /** When it got its first token; -1: it has none. */
  firstTokenAtMs = -1;
  /**
   * That of the sequence which gave tokens of the answer over selected tokens, also once an exact one goes on with
   * them.
   */
  #selection: TokenSelection | undefined;
  readonly #cache: KvCache;
  /** Tokens that were cached when it first got a slot, or when that was asked before; -1: not known. */
  #cachedTokens = -1;
  /** Tokens of its text when it last gave way. */
  #gaveWayAtTokens = -1;
  /** Whether its side rows are its result's. */
  #isAnswered = false;
  #isInputFree = false;
  readonly #sampledText: SampledText;
  /** Resolves when no pass that was given up reads its input. */
  #inputRead: Promise<void> = Promise.resolve();

  constructor({ cache, request, answer = 0, arrival, nowMs, listener }: GenerationOptions) {
    this.#cache = cache;
    this.request = request;
    this.arrival = arrival;
    this.listener = listener;
    this.text = request.tokens;
    this.textTokens = this.promptTokens = request.tokens.length;
    this.submittedMs = nowMs;
    this.#sampledText = new GeneratedText(this);
    this.rules = rulesOf(request.sampler);
    const seed = this.rules?.seed;
    this.seed = seed === undefined
      ? randomSeed()
      : seed <= Number.MAX_SAFE_INTEGER - answer ? seed + answer : seed - 2 ** 53 + answer;
    this.deadlineAtMs = nowMs + (request.deadlineMs ?? Infinity);
    const { pieces, stopStrings, logProbabilities } = request;
    this.answerText = pieces === undefined ? undefined : new AnswerText({ pieces, stopStrings, arrival });
    this.logProbabilities = logProbabilities === undefined ? undefined : [];
  }

  get urgency(): number {
    return this.request.urgency;
  }

  get tenant(): string | undefined {
    return this.request.tenant;
  }

  get adapter(): string | undefined {
    return this.request.adapter;
  }

  get orderValue(): unknown {
    return this.request.orderValue;
  }

  get cachedTokens(): number {
    if (this.#cachedTokens < 0) this.#cachedTokens = this.#findCached();
    return this.#cachedTokens;
  }

  /** More of its prompt may be cached than was. */
  forgetCached(): void {
    if (this.preemptions === 0) this.#cachedTokens = -1;
  }

  #findCached(): number {
    const { caching } = this;
    return caching === 'off' || caching === 'write' ? 0 : this.#cache.prefixes.lookup(this.prompt).cachedTokens;
  }

  /** As of its request; `off` while it is computed once more without what it had found. */
  get caching(): ReadRequest['caching'] {
    return this.distrustedTokens > 0 ? 'off' : this.request.caching;
  }

  /** What the cache is asked for. */
  get prompt(): Pick<ReadRequest, 'items' | 'tenant' | 'salt' | 'adapter' | 'needs'> & { readonly tokens: Int32Array } {
    const { items, tenant, salt, adapter, needs } = this.request;
    return { tokens: this.text.subarray(0, this.textTokens), items, tenant, salt, adapter, needs };
  }

  get tenantTokens(): number {
    return this.share?.tokens ?? 0;
  }

  /** Its text, and where its sequence's is cached. */
  get knownPrompt(): KnownPrompt {
    const { tokens, items, tenant, salt, adapter } = this.prompt;
    return { tokens, items, tenant, salt, adapter, namespace: this.namespace };
  }

  /** What a sampler is given of its text. */
  get sampledText(): SampledText {
    return this.#sampledText;
  }

  get generatedTokens(): number {
    return this.textTokens - this.promptTokens;
  }

  /** Tokens of the text without K and V. */
  get remainingTokens(): number {
    return this.textTokens - this.length;
  }

  /** A single remaining token is decoding: also the last of a prompt when all before it were cached. */
  get remainingPrefillTokens(): number {
    return this.remainingTokens === 1 ? 0 : this.remainingTokens;
  }

  /** Of its next `tokens` tokens, the most that do not end inside an indivisible item; may be 0. */
  wholeTokens(tokens: number): number {
    const item = this.#itemCutAt(this.length + tokens);
    return item === undefined ? tokens : Math.max(0, item.at - this.length);
  }

  /** Its next tokens up to the end of the indivisible item in which they lie; 1 where there is none. */
  get leastTokens(): number {
    const item = this.#itemCutAt(this.length + 1);
    return item === undefined ? 1 : item.at + item.length - this.length;
  }

  /** The indivisible item that a pass cuts which ends before token `at`. */
  #itemCutAt(at: number): PromptItem | undefined {
    const item = this.request.items.find((each) => at < each.at + each.length);
    return item !== undefined && at > item.at && (item.indivisible ?? item.kind === 'item') ? item : undefined;
  }

  /** Whether the logits behind its text may be cached: they are those of a prompt, which other requests may have. */
  get keepsLogits(): boolean {
    const { caching } = this;
    return this.generatedTokens === 0 && this.sequence?.isLossy !== true
      && (caching === 'read-write' || caching === 'write');
  }

  /** Whether it has got no token since it last gave way to others: to do so again would be in vain. */
  get isStuck(): boolean {
    return this.#gaveWayAtTokens === this.textTokens;
  }

  /** Whether `other` may find this one's text in the cache. */
  sharesWith(other: Generation): boolean {
    const { caching, request: { tenant, salt, adapter, needs } } = this;
    const its = other.request;
    if (needs !== undefined && !(its.needs?.every((name) => needs.includes(name)) ?? false)) return false;
    return tenant === its.tenant && salt === its.salt && adapter === its.adapter
      && (caching === 'read-write' || caching === 'write')
      && (other.caching === 'read-write' || other.caching === 'read');
  }

  /** The error it ends with when it is cancelled. */
  abortError(reason?: unknown): Error {
    return createError('KV_ABORTED', { operation: 'generating' }, { cause: reason });
  }

  /**
   * The error it ends with when its deadline has passed. Its cause is what the request has lacked, where that is known.
   */
  lateError(): Error {
    const { deadlineMs = Infinity, maxNewTokens } = this.request;
    const details = { deadlineMs, generatedTokens: this.generatedTokens, maxNewTokens };
    return createError('KV_DEADLINE_EXCEEDED', details, { cause: this.shortage });
  }

  /** Takes a slot, in which the cached start of its text is valid. */
  start(sequence: Sequence): void {
    this.sequence = sequence;
    this.length = sequence.length;
    this.held = undefined;
    this.leader = undefined;
    this.shortage = undefined;
    this.selected = undefined; // a sequence that it may need later is exact
    if (this.preemptions === 0) this.#cachedTokens = sequence.cachedTokens;
    const { handOver } = this.request;
    if (handOver !== false) this.side = sequence.handOver(handOver === true ? undefined : handOver);
    this.listener.started?.(sequence);
  }

  /** Tokens of its text that its sequence, or that before a preemption, did not compute: their K and V came with it. */
  get foundTokens(): number {
    const { sequence, cachedTokens } = this;
    return Math.max(cachedTokens, sequence?.cachedTokens ?? 0, sequence?.selection?.textTokens ?? 0);
  }

  /** Notes when it first got a slot; returns how long it has waited, in ms. */
  noteStart(nowMs: number): number {
    const waitMs = nowMs - this.submittedMs;
    this.admission = { waitMs, cachedTokens: this.cachedTokens, promotion: this.promotion };
    return waitMs;
  }

  /**
   * Takes a slot by a fork of the sequence of another answer, whose whole prompt is valid there. Its last token is
   * computed again, for its own logits.
   */
  startFrom(leader: Generation): void {
    const sequence = leader.sequence!.fork();
    this.namespace = leader.namespace;
    try {
      sequence.truncate(this.promptTokens - 1);
      const { caching, items } = this.request;
      if (caching !== 'off' && items.length === 0) sequence.append(this.text[this.promptTokens - 1]!);
      this.start(sequence);
    } catch (error) {
      this.sequence = undefined;
      this.length = 0;
      sequence.release();
      throw error;
    }
  }

  /** Gives its slot back, unless it has none or that was taken away. */
  release(): void {
    const { sequence } = this;
    this.sequence = undefined;
    this.reachedTokens = this.length;
    this.length = 0;
    this.passTokens = 0;
    if (!this.#isAnswered) { // preempted or failed: no result carries the rows, and other requests need their memory
      this.side?.close();
      this.side = undefined;
    }
    if (sequence !== undefined && !sequence.isReleased) {
      this.listener.leaving?.(sequence);
      sequence.release();
    }
    if (this.hasEnded) this.freeInput();
  }

  /** A pass that was given up may read its input until `over` resolves. */
  keepInput(over: Promise<void>): void {
    this.#inputRead = over;
  }

  /** It has ended, and no step will read its input. */
  freeInput(): void {
    const { releaseInput } = this.request;
    if (this.#isInputFree || releaseInput === undefined) return;
    this.#isInputFree = true;
    this.#inputRead.then(releaseInput).catch((error: unknown) => {
      this.onFailure(asError(error, 'releaseInput'));
    });
  }

  /** Gives its slot back and has to start again later. Its tokens stay, and its rows may still be cached then. */
  preempt(): void {
    this.release();
    this.preemptions += 1;
  }

  /** It is preempted next, since it or others lack memory or a slot. */
  giveWay(): void {
    this.#gaveWayAtTokens = this.textTokens;
  }

  /** Counts the tokens of its pass as valid. `keptLogits`: those behind its prompt, to be cached with it. */
  advance(keptLogits: Float32Array | undefined): void {
    this.length += this.passTokens;
    if (keptLogits !== undefined) this.sequence!.keepValue(keptLogits);
  }

  /**
   * Takes the tokens of its pass back, for which it has ended before they were counted: its input may have been gone,
   * and no request shall find in the cache what was computed without.
   */
  forgetPass(): void {
    if (this.request.input !== undefined) this.#takeBackTo(this.length);
  }

  /** Takes the tokens of its pass back, since they gave no token: no request shall find them in the cache. */
  takeBack(): void {
    this.#takeBackTo(this.length - this.passTokens);
  }

  /** Where layers have let go of what they would see from there, the cache keeps no text either. */
  #takeBackTo(tokens: number): void {
    try {
      this.sequence!.truncate(tokens);
    } catch (error) {
      if (!isKvError(error, 'KV_WINDOW_PASSED')) throw error;
    }
  }

  /**
   * Adds the next token of the answer to its text: before `accept`, since this calls a function of the request, which
   * may end it.
   */
  acceptText(token: number): void {
    const isStop = this.#isStop(token);
    if (!isStop) this.answerText?.push(token);
    if (isStop || this.generatedTokens + 1 >= this.request.maxNewTokens) this.answerText?.end();
  }

  /** Takes the next token of the answer. Returns the result when it was the last. */
  accept(token: number, nowMs: number, logProbability: TokenLogProbability | undefined): GenerationResult | undefined {
    if (this.firstTokenAtMs < 0) this.firstTokenAtMs = nowMs;
    this.lastTokenMs = nowMs;
    this.#selection ??= this.sequence?.selection;
    if (this.#isStop(token)) return this.#result('stop', token, nowMs);
    if (this.textTokens === this.text.length) this.#enlarge();
    this.text[this.textTokens] = token;
    this.textTokens += 1;
    if (logProbability !== undefined) this.logProbabilities?.push(logProbability);
    this.listener.token?.(token);
    if (this.answerText?.stopString !== undefined) return this.#result('stop', undefined, nowMs);
    const { maxNewTokens, caching } = this.request;
    if (this.generatedTokens >= maxNewTokens) return this.#result('length', undefined, nowMs);
    // its tokenizer may have taken the slot away
    if (caching !== 'off' && !this.sequence!.isReleased) this.sequence!.append(token);
    return undefined;
  }

  /** Ends the answer with the tokens that it has. */
  finish(nowMs: number): GenerationResult {
    return this.#result('stop', undefined, nowMs);
  }

  #isStop(token: number): boolean {
    const { stopTokens } = this.request;
    return stopTokens.size > 0 && stopTokens.has(token);
  }

  #result(finishReason: FinishReason, stopToken: number | undefined, nowMs: number): GenerationResult {
    this.#isAnswered = true;
    const { promptTokens, admission, promotion, preemptions, logProbabilities, side } = this;
    return {
      tokens: this.text.slice(promptTokens, this.textTokens), finishReason, stopToken,
      stopString: this.answerText?.stopString,
      text: this.answerText?.text, logProbabilities, promptTokens, cachedTokens: admission?.cachedTokens ?? 0,
      promotion, selection: this.#selection?.counts, preemptions,
      firstTokenMs: (this.firstTokenAtMs < 0 ? nowMs : this.firstTokenAtMs) - this.submittedMs,
      totalMs: nowMs - this.submittedMs, side,
    };
  }

  #enlarge(): void {
    const most = this.promptTokens + this.request.maxNewTokens;
    const text = new Int32Array(Math.min(most, this.textTokens + Math.max(64, this.generatedTokens)));
    text.set(this.text);
    this.text = text;
  }
}
