// StepPasses: the plan of a step, its two passes, the one that decodes and the one with chunks of prompts, and the
// batch that holds both. Filled anew every step and reused; arrays only grow. Prepares and computes nothing.

import type { Batch } from '../cache/batch.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { Sequence } from '../cache/sequence.js';
import type { RowPlaces } from '../side/side-rows.js';
import type { PromptItem } from '../prefix/prompt-encoder.js';
import type { EnginePass } from './engine.js';
import type { Generation } from './generation.js';
import type { TokenLogProbability } from './plain-sampling.js';
import type { PrefillBudget } from './scheduler-options.js';

/** A sequence as the plan sees it. */
export interface StepMember {
  /** Tokens of its prompt to compute before it decodes; 0: it decodes. */
  readonly remainingPrefillTokens: number;
  /** Of its request. */
  readonly urgency: number;
  /** Set by the plan: tokens that it computes in the next step; 0: it waits. */
  passTokens: number;
  /** Of its next `tokens` tokens, the most that do not end inside an indivisible item; may be 0. */
  wholeTokens(tokens: number): number;
  /** Its next tokens up to the end of the indivisible item in which they lie; 1 where there is none. */
  readonly leastTokens: number;
}

/**
 * Sets `passTokens` of every member: 1 for each that decodes, so that no answer stalls behind a prompt, and what the
 * budget allows for prompts. `shortTokens` of it go to the prompts with the fewest tokens left, of those that are as
 * urgent as the first; the rest goes to the prompts in the order given, so that the first always goes on. Returns the
 * prefill tokens.
 */
export function planStep(
  members: readonly StepMember[], { tokens, shortTokens, promptTokens }: PrefillBudget,
): number {
  let first: StepMember | undefined;
  let prompts = 0;
  for (const member of members) {
    const isPrompt = member.remainingPrefillTokens > 0;
    member.passTokens = isPrompt ? 0 : 1;
    if (!isPrompt) continue;
    first ??= member;
    prompts += 1;
  }
  if (first === undefined) return 0;
  let left = tokens;
  if (prompts > 1 && shortTokens > 0 && first.wholeTokens(tokens - shortTokens) > 0) {
    left -= planShortest(members, first.urgency, shortTokens, promptTokens);
  }
  for (const member of members) {
    const { remainingPrefillTokens, passTokens } = member;
    if (remainingPrefillTokens === 0) continue;
    let planned = member.wholeTokens(Math.min(remainingPrefillTokens, passTokens + left, promptTokens));
    if (planned === 0 && member === first) planned = member.leastTokens; // more than a step has
    member.passTokens = planned;
    left = Math.max(0, left - planned + passTokens);
  }
  return members.reduce(
    (sum, { passTokens, remainingPrefillTokens }) => sum + (remainingPrefillTokens > 0 ? passTokens : 0), 0);
}

/**
 * Gives `tokens` to the prompts of this urgency or more with the fewest tokens left, at most `promptTokens` to each.
 * Returns how many it has given.
 */
function planShortest(
  members: readonly StepMember[], urgency: number, tokens: number, promptTokens: number,
): number {
  let left = tokens;
  while (left > 0) {
    let shortest: StepMember | undefined;
    for (const member of members) {
      const { remainingPrefillTokens, passTokens } = member;
      if (remainingPrefillTokens === 0 || passTokens > 0 || member.urgency < urgency) continue;
      if (shortest === undefined || remainingPrefillTokens < shortest.remainingPrefillTokens) shortest = member;
    }
    const planned = shortest?.wholeTokens(Math.min(shortest.remainingPrefillTokens, left, promptTokens)) ?? 0;
    if (planned === 0) break;
    shortest!.passTokens = planned;
    left -= planned;
  }
  return tokens - left;
}

const noItems: readonly PromptItem[] = [];

/** Those of a prompt's items, which are in order, that cover some of its tokens [from, to). */
function itemsIn(items: readonly PromptItem[], from: number, to: number): readonly PromptItem[] {
  const last = items.at(-1);
  if (last === undefined || last.at + last.length <= from) return noItems; // no answer allocates
  return items.filter(({ at, length }) => at < to && at + length > from);
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
  readonly items: (readonly PromptItem[])[] = [];
  readonly adapters: (string | undefined)[] = [];
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
    return {
      slots: this.slots, tokens: this.tokenCounts, generations: this.#slotGenerations, length: this.#length,
      skipsGaps: true,
    };
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
    const { sequences, contextTokens, inputs, items, adapters, generations, logProbabilities, errors, keptLogits } =
      this;
    if (sequences.length === this.#length) return;
    const lists =
      [sequences, contextTokens, inputs, items, adapters, generations, logProbabilities, errors, keptLogits];
    for (const list of lists) list.length = this.#length;
  }

  /** Adds the next `passTokens` tokens of a generation, whose slot has this generation. */
  add(generation: Generation, slotGeneration: number): void {
    const { length: at } = this;
    const { sequence, text, length, passTokens, remainingTokens, request } = generation;
    this.slots[at] = sequence!.slot;
    this.positions[at] = length;
    this.tokenCounts[at] = passTokens;
    this.starts[at] = this.#tokenCount;
    this.wantsLogits[at] = passTokens === remainingTokens ? 1 : 0;
    this.sequences[at] = sequence!;
    this.contextTokens[at] = text;
    this.inputs[at] = request.input;
    this.items[at] = itemsIn(request.items, length, length + passTokens);
    this.adapters[at] = request.adapter;
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

  /** Plans a step of these generations: a token for each that decodes, and tokens of prompts within the budget. */
  fill(generations: readonly Generation[], budget: PrefillBudget): void {
    planStep(generations, budget);
    this.batch.clear();
    this.decode.clear();
    this.prefill.clear();
    for (const generation of generations) {
      const { passTokens, remainingPrefillTokens, sequence } = generation;
      if (passTokens === 0) continue;
      this.batch.add(sequence!, passTokens);
      (remainingPrefillTokens === 0 ? this.decode : this.prefill).add(
        generation, this.batch.generations[this.batch.length - 1]!);
    }
    this.decode.trim();
    this.prefill.trim();
  }
}
