// StepPasses: the plan of a step, its two passes, the one that decodes and the one with chunks of prompts, and the batch that
// holds both. Filled anew every step and reused; arrays only grow. Prepares and computes nothing.

import type { Batch } from '../cache/batch.js';
import type { KvCache } from '../cache/kv-cache.js';
import type { Sequence } from '../cache/sequence.js';
import type { RowPlaces } from '../side/side-rows.js';
import type { EnginePass } from './engine.js';
import type { Generation } from './generation.js';
import type { TokenLogProbability } from './plain-sampling.js';

/** A sequence as the plan sees it. */
export interface StepMember {
  /** Tokens of its prompt to compute before it decodes; 0: it decodes. */
  readonly remainingPrefillTokens: number;
  /** Set by the plan: tokens that it computes in the next step; 0: it waits. */
  passTokens: number;
}

/**
 * Sets `passTokens` of every member: 1 for each that decodes, so that no answer stalls behind a prompt, and what the budget allows
 * for prompts, in the order given. Returns the prefill tokens, at most `prefillTokensPerStep`.
 */
export function planStep(members: readonly StepMember[], prefillTokensPerStep: number): number {
  let prefillTokens = 0;
  for (const member of members) {
    const { remainingPrefillTokens } = member;
    if (remainingPrefillTokens === 0) {
      member.passTokens = 1;
      continue;
    }
    member.passTokens = Math.min(remainingPrefillTokens, prefillTokensPerStep - prefillTokens);
    prefillTokens += member.passTokens;
  }
  return prefillTokens;
}

/** The arrays of one forward pass, and the requests in it. */
export class Pass implements EnginePass {
  readonly slots: Int32Array;
  readonly positions: Int32Array;
  readonly tokenCounts: Int32Array;
  readonly starts: Int32Array;
  readonly wantsLogits: Uint8Array;
  readonly sequences: Sequence[] = [];
  readonly contextTokens: Int32Array[] = [];
  readonly inputs: unknown[] = [];
  readonly generations: Generation[] = [];
  /** [sequence]: the token behind its last, where `wantsLogits` is 1 and there is no error. */
  readonly nextTokens: Int32Array;
  /** [sequence]: how likely that was, where its request asks for it. */
  readonly logProbabilities: (TokenLogProbability | undefined)[] = [];
  /** [sequence]: why no next token could be chosen. */
  readonly errors: (Error | undefined)[] = [];
  /** [sequence]: a copy of the logits behind its prompt, where they may be kept for other requests. */
  readonly keptLogits: (Float32Array | undefined)[] = [];
  /** Whether the engine has begun it and not answered: the device may write to its slots. */
  isRunning = false;
  /** Whether it runs and the engine's answer is there: its tokens are being chosen. */
  isAnswered = false;
  /** Resolves when it runs no more; undefined: it was not begun. */
  over: Promise<void> | undefined;
  /** Of `signal`; undefined: the engine has not asked for it. */
  #dropping: AbortController | undefined;
  /** [sequence]: the generation of its slot. */
  readonly #slotGenerations: Uint32Array;
  #tokens: Int32Array;
  #tokenCount = 0;
  #length = 0;

  /** For at most `capacity` sequences. */
  constructor(capacity: number) {
    this.slots = new Int32Array(capacity);
    this.positions = new Int32Array(capacity);
    this.tokenCounts = new Int32Array(capacity);
    this.starts = new Int32Array(capacity);
    this.wantsLogits = new Uint8Array(capacity);
    this.nextTokens = new Int32Array(capacity);
    this.#slotGenerations = new Uint32Array(capacity);
    this.#tokens = new Int32Array(Math.max(capacity, 256));
  }

  get length(): number {
    return this.#length;
  }

  get tokens(): Int32Array {
    return this.#tokens;
  }

  /** Made when it is asked for: many engines never do. */
  get signal(): AbortSignal {
    this.#dropping ??= new AbortController();
    return this.#dropping.signal;
  }

  /** Tokens of all its sequences. */
  get totalTokens(): number {
    return this.#tokenCount;
  }

  /** Where rows of side tensors go that are packed as its tokens are. */
  get places(): RowPlaces {
    return { slots: this.slots, tokens: this.tokenCounts, generations: this.#slotGenerations, length: this.#length, skipsGaps: true };
  }

  /** Whether a sequence of it holds selected tokens: what it takes says nothing of computing. */
  get hasSelections(): boolean {
    return this.sequences.some(({ isLossy }) => isLossy);
  }

  /** Whether all its requests have ended. */
  get hasEnded(): boolean {
    return this.generations.every(({ hasEnded }) => hasEnded);
  }

  /** Tells the engine that no request needs its answer, unless that is there. */
  drop(reason: Error): void {
    if (!this.isRunning || this.isAnswered) return;
    this.#dropping ??= new AbortController();
    this.#dropping.abort(reason);
  }

  /** Empties it. Where it is filled anew, `trim` when that is done. */
  clear(): void {
    this.over = undefined;
    this.isAnswered = false;
    this.#dropping = undefined;
    this.#tokenCount = 0;
    this.#length = 0;
  }

  /** Cuts the arrays of objects to its length. Not emptied and filled again, they keep their memory. */
  trim(): void {
    const { sequences, contextTokens, inputs, generations, logProbabilities, errors, keptLogits } = this;
    if (sequences.length === this.#length) return;
    for (const list of [sequences, contextTokens, inputs, generations, logProbabilities, errors, keptLogits]) list.length = this.#length;
  }

  /** Adds the next `passTokens` tokens of a generation, whose slot has this generation. */
  add(generation: Generation, slotGeneration: number): void {
    const { length: at } = this;
    const { sequence, text, length, passTokens, remainingTokens } = generation;
    this.slots[at] = sequence!.slot;
    this.positions[at] = length;
    this.tokenCounts[at] = passTokens;
    this.starts[at] = this.#tokenCount;
    this.wantsLogits[at] = passTokens === remainingTokens ? 1 : 0;
    this.sequences[at] = sequence!;
    this.contextTokens[at] = text;
    this.inputs[at] = generation.request.input;
    this.#slotGenerations[at] = slotGeneration;
    this.generations[at] = generation;
    this.logProbabilities[at] = undefined;
    this.errors[at] = undefined;
    this.keptLogits[at] = undefined;
    this.#length += 1;
    this.#reserve(this.#tokenCount + passTokens);
    for (let index = 0; index < passTokens; index += 1) this.#tokens[this.#tokenCount + index] = text[length + index]!;
    this.#tokenCount += passTokens;
  }

  #reserve(tokens: number): void {
    if (tokens <= this.#tokens.length) return;
    const larger = new Int32Array(Math.max(tokens, 2 * this.#tokens.length));
    larger.set(this.#tokens);
    this.#tokens = larger;
  }
}

export class StepPasses {
  readonly batch: Batch;
  readonly decode: Pass;
  readonly prefill: Pass;

  /** For at most `maxBatch` sequences. */
  constructor(cache: KvCache, maxBatch: number) {
    this.batch = cache.createBatch(maxBatch);
    this.decode = new Pass(maxBatch);
    this.prefill = new Pass(maxBatch);
  }

  /** Plans a step of these generations: a token for each that decodes, and so many tokens of prompts at most. */
  fill(generations: readonly Generation[], prefillTokensPerStep: number): void {
    planStep(generations, prefillTokensPerStep);
    this.batch.clear();
    this.decode.clear();
    this.prefill.clear();
    for (const generation of generations) {
      const { passTokens, remainingPrefillTokens, sequence } = generation;
      if (passTokens === 0) continue;
      this.batch.add(sequence!, passTokens);
      (remainingPrefillTokens === 0 ? this.decode : this.prefill).add(generation, this.batch.generations[this.batch.length - 1]!);
    }
    this.decode.trim();
    this.prefill.trim();
  }
}
