// Workload: a serving trace that the package makes itself, so that a replay needs no data file. Shaped like the public
// ones: lognormal prompt lengths (median and spread of the Azure code trace), short answers to long prompts, arrivals
// in bursts, and conversations whose turns repeat their earlier turns, over a few common system prompts. A seed gives
// the same requests on every machine, each time it is iterated.

import { Random } from '../base/random.js';
import { HASH_BLOCK_TOKENS, type TraceRequest } from './trace-request.js';

export interface WorkloadOptions {
  /** Requests to make, 1 or more. Default 1,000. */
  readonly requests?: number;
  /** Any safe integer. Default 1. */
  readonly seed?: number;
  /** Prompts are cut to this many tokens, 1 or more. Default 16,384. */
  readonly maxPromptTokens?: number;
  /** Mean gap between two arrivals in ms, above 0. Default 250. */
  readonly meanGapMs?: number;
}

/** Share of requests that are turns of a conversation; the rest are one-off completions. */
const CONVERSATION_SHARE = 0.4;
/** Chance that a turn continues an open conversation instead of opening one. */
const NEXT_TURN_CHANCE = 0.75;
const OPEN_CONVERSATIONS = 64;
const SYSTEM_PROMPTS = 6;
const MAX_OUTPUT_TOKENS = 2_048;

/** Lognormal lengths: the median in tokens, and the deviation of the logarithm. */
const COMPLETION = { prompt: [1_100, 1.36], output: [16, 0.85] } as const;
const TURN = { prompt: [180, 1.1], output: [160, 0.8] } as const;

/**
 * Most requests come in bursts, some after a pause: a hyperexponential gap, its two means as shares of the whole mean.
 */
const BURST_CHANCE = 0.9;
const BURST_GAP = 0.3;
const PAUSE_GAP = (1 - BURST_CHANCE * BURST_GAP) / (1 - BURST_CHANCE);

interface Conversation {
  /** Tokens so far: the system prompt, every turn, every answer. */
  tokens: number;
  /** Ids of those blocks that can no longer change, first block first. */
  wholeBlocks: Int32Array;
}

export class Workload implements Iterable<TraceRequest> {
  readonly name = 'generated workload';
  readonly format = 'generated';
  readonly totalRequests: number;
  readonly seed: number;
  readonly #maxPromptTokens: number;
  readonly #meanGapMs: number;

  constructor({ requests = 1_000, seed = 1, maxPromptTokens = 16_384, meanGapMs = 250 }: WorkloadOptions = {}) {
    this.totalRequests = requests;
    this.seed = seed;
    this.#maxPromptTokens = maxPromptTokens;
    this.#meanGapMs = meanGapMs;
  }

  /** The requests, in order of arrival. */
  *[Symbol.iterator](): Generator<TraceRequest, void, undefined> {
    const random = new Random(this.seed);
    const talk = new Talk(random, this.#maxPromptTokens);
    let arrivalMs = 0;
    for (let line = 1; line <= this.totalRequests; ++line) {
      const lengths = random.chance(CONVERSATION_SHARE) ? talk.turn() : talk.completion();
      yield { line, arrivalMs, ...lengths };
      const share = random.chance(BURST_CHANCE) ? BURST_GAP : PAUSE_GAP;
      arrivalMs += Math.round(random.exponential(this.#meanGapMs * share));
    }
  }
}

/** Makes the prompts: lengths and the identity of blocks. Owns the open conversations. */
class Talk {
  readonly #random: Random;
  readonly #maxPromptTokens: number;
  readonly #systemPrompts: readonly Conversation[];
  readonly #open: Conversation[] = [];
  #nextId = 0;

  constructor(random: Random, maxPromptTokens: number) {
    this.#random = random;
    this.#maxPromptTokens = maxPromptTokens;
    this.#systemPrompts = Array.from({ length: SYSTEM_PROMPTS }, () => {
      const tokens = Math.min(maxPromptTokens, 128 + random.integer(2_048));
      return { tokens, wholeBlocks: this.#blocksOf(tokens).subarray(0, wholeBlocksIn(tokens)) };
    });
  }

  /** A one-off: a prompt that shares nothing. */
  completion(): Omit<TraceRequest, 'line' | 'arrivalMs'> {
    const promptTokens = this.#length(COMPLETION.prompt, this.#maxPromptTokens);
    return { promptTokens, outputTokens: this.#length(COMPLETION.output), hashIds: this.#blocksOf(promptTokens) };
  }

  /** A turn: its conversation so far, and new tokens. */
  turn(): Omit<TraceRequest, 'line' | 'arrivalMs'> {
    const at = this.#place();
    const conversation = (this.#open[at] ??= { ...this.#systemPrompts[this.#random.integer(SYSTEM_PROMPTS)]! });
    const promptTokens = Math.min(this.#maxPromptTokens, conversation.tokens + this.#length(TURN.prompt));
    const outputTokens = this.#length(TURN.output);
    const hashIds = this.#blocksOf(promptTokens, conversation.wholeBlocks);
    conversation.tokens = promptTokens + outputTokens;
    conversation.wholeBlocks = hashIds.subarray(0, wholeBlocksIn(promptTokens));
    if (conversation.tokens >= this.#maxPromptTokens) delete this.#open[at]; // full: the next turn here opens another
    return { promptTokens, outputTokens, hashIds };
  }

  /** Chooses the conversation of a turn: an open one, or a new one, which replaces an old one when there are many. */
  #place(): number {
    if (this.#open.length > 0 && this.#random.chance(NEXT_TURN_CHANCE)) return this.#random.integer(this.#open.length);
    if (this.#open.length < OPEN_CONVERSATIONS) return this.#open.length;
    const at = this.#random.integer(OPEN_CONVERSATIONS);
    delete this.#open[at];
    return at;
  }

  #length([median, deviation]: readonly [number, number], most = MAX_OUTPUT_TOKENS): number {
    return Math.min(most, Math.max(1, Math.round(this.#random.lognormal(median, deviation))));
  }

  #blocksOf(tokens: number, known: Int32Array = new Int32Array(0)): Int32Array {
    const ids = new Int32Array(Math.ceil(tokens / HASH_BLOCK_TOKENS));
    ids.set(known.subarray(0, ids.length));
    for (let block = known.length; block < ids.length; ++block) ids[block] = this.#nextId++;
    return ids;
  }
}

function wholeBlocksIn(tokens: number): number {
  return Math.floor(tokens / HASH_BLOCK_TOKENS);
}
