// Engine: what the schedulers need of an inference engine, as types. An engine is two functions over the cache's
// addresses. It owns weights and kernels, and does not know requests, admission or sharing. The schedulers call it from
// the cache's thread, one pass at a time, also where several of them have the same engine. docs/engines.md shows how to
// write one.

import type { Sequence } from '../cache/sequence.js';
import type { PromptItem } from '../prefix/prompt-encoder.js';
import type { SideRowsByName } from '../side/side-rows.js';

/** Parts of a request that its engine alone can obey. */
export const requestParts = ['input', 'items', 'adapter'] as const;

export type RequestPart = (typeof requestParts)[number];

/**
 * One forward pass over several sequences, as flat arrays that native code can read as they are. The arrays belong to
 * the scheduler: they are valid until the engine's answer, must not be written to or kept, and only their first
 * `length` entries count.
 *
 * For each sequence i the engine computes K and V of `tokenCounts[i]` new tokens and writes them at tokens
 * `positions[i]` … `positions[i] + tokenCounts[i] - 1` of slot `slots[i]` in every tensor of the cache. Memory for them
 * is mapped. Each new token attends to all tokens of the slot up to itself; those before `positions[i]` are valid,
 * whether the engine has computed them in this slot or the prefix cache has taken them from another.
 */
export interface EnginePass {
  /** Sequences in it, 1 or more. */
  readonly length: number;
  /** [sequence]: row of the slot dimension in every tensor. */
  readonly slots: Int32Array;
  /** [sequence]: tokens that are valid, which is where the new ones go. */
  readonly positions: Int32Array;
  /** [sequence]: new tokens; 1 for each in `decode`. */
  readonly tokenCounts: Int32Array;
  /** [sequence]: where its new tokens start in `tokens`. */
  readonly starts: Int32Array;
  /** New tokens of all sequences, one sequence after the other. */
  readonly tokens: Int32Array;
  /** [sequence]: 1 when the logits behind its last new token are read; 0 in the middle of a prompt. */
  readonly wantsLogits: Uint8Array;
  /** [sequence]: the lease of the slot, for `address` and `view`. */
  readonly sequences: readonly Sequence[];
  /** [sequence]: all its tokens from the first on, at least `positions[i] + tokenCounts[i]` of them. */
  readonly contextTokens: readonly Int32Array[];
  /** [sequence]: `input` of its request. */
  readonly inputs: readonly unknown[];
  /**
   * [sequence]: the items of its request that cover some of its new tokens, in order; their places are those in the
   * prompt.
   */
  readonly items: readonly (readonly PromptItem[])[];
  /** [sequence]: the adapter (LoRA) of its request; undefined: none. */
  readonly adapters: readonly (string | undefined)[];
  /**
   * Aborted when no request needs the answer any more: all requests in the pass have ended, and none that waits begins
   * with the text that it computes; or the pass was given up. An engine may then stop, and throws or rejects, with any
   * error, once nothing of the pass runs; nothing of the pass counts. One that ignores it answers as ever. Never
   * aborted after the answer. Another signal in each pass.
   */
  readonly signal: AbortSignal;
}

/**
 * What an engine answers to a pass. `logits`: [sequence, token of the vocabulary], the engine's own array, which may be
 * the same every time; rows where `wantsLogits` is 0 are not read, and may be missing at the end. `tokens`: [sequence],
 * the next token of each, where the engine samples by itself.
 *
 * `side`: rows of the cache's side tensors by name, each [new token of the pass, width], packed in the order of
 * `tokens` in the pass, as a typed array of its dtype. They are copied at once, so the engine may use the arrays again.
 * A name may be missing: the cached and handed-over rows of that tensor then end before this pass, for the sequences
 * in it.
 */
export type EngineOutput = ({ readonly logits: Float32Array } | { readonly tokens: Int32Array }) & {
  readonly side?: SideRowsByName | undefined;
};

/**
 * Computes passes. Both functions answer at once or by a promise. The scheduler waits for it before it uses these slots
 * again, also where it has given the pass up (`passTimeoutMs`). An answer says that the pass is over: the engine must
 * not read or write this memory any more, since rows may be given to other sequences right after it. The same holds
 * where a function throws or rejects; then the pass does not count: its requests end with KV_ENGINE_FAILED and this
 * error as the cause, other requests go on.
 */
export interface Engine {
  /** Tokens of the vocabulary: the length of a row of logits. */
  readonly vocabularyTokens: number;
  /**
   * Whether it computes sequences that hold selected tokens of their text (`sequences[i].selection`), for requests with
   * `selection`: loads them layer by layer, and counts the tokens that each layer holds. Default false: such requests
   * are refused.
   */
  readonly canSelect?: boolean | undefined;
  /**
   * What it reads of a request beside its tokens. Requests with more are refused, since their answers would be those of
   * the tokens alone. Default: all of it.
   */
  readonly reads?: readonly RequestPart[] | undefined;
  /** Computes chunks of prompts, of one sequence or several. */
  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput>;
  /**
   * Computes one token of each sequence. Also the last token of a prompt when all before it are valid, or there are
   * none.
   */
  decode(pass: EnginePass): EngineOutput | Promise<EngineOutput>;
}
