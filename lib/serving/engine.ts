// Engine: what the schedulers need of an inference engine, as types. An engine is two functions over the cache's addresses;
// it owns weights and kernels, and knows nothing of requests, admission or sharing. The schedulers call it from the cache's
// thread, one pass at a time, also where several have the same engine. docs/engines.md shows how to write one.

import type { Sequence } from '../cache/sequence.js';

/**
 * One forward pass over several sequences, as flat arrays that can cross into native code as they are. All of it is the
 * scheduler's: valid until the engine's answer, not to be written to or kept. Of each array the first entries count.
 *
 * What the engine does for sequence i: it computes K and V of its `tokenCounts[i]` new tokens and writes them at tokens
 * `positions[i]` … `positions[i] + tokenCounts[i] - 1` of slot `slots[i]` in every tensor of the cache. Memory for them is
 * mapped. Each new token attends to all tokens of the slot up to itself; those before `positions[i]` are valid, whether the
 * engine has computed them in this slot, or the prefix cache has brought them from another.
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
  readonly texts: readonly Int32Array[];
}

/**
 * `logits`: [sequence, token of the vocabulary], the engine's own array, which may be the same every time; rows where
 * `wantsLogits` is 0 are not read, and may be missing at the end. `tokens`: [sequence], the next token of each, where the engine samples by itself.
 */
export type EngineOutput = { readonly logits: Float32Array } | { readonly tokens: Int32Array };

/**
 * Both functions answer at once or by a promise, which the scheduler waits for before it touches these slots again, also where it
 * has given the pass up (`passTimeoutMs`). The answer says that the pass is over: nothing reads or writes this memory any more,
 * since rows may change hands right after it.
 * Where they throw, that holds too, and the pass does not count: its requests end with KV_ENGINE_FAILED and this error as its
 * cause; the others go on.
 */
export interface Engine {
  /** Tokens of the vocabulary: the length of a row of logits. */
  readonly vocabularyTokens: number;
  /** Computes chunks of prompts, of one sequence or several. */
  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput>;
  /** Computes one token of each sequence. Also the last token of a prompt whose others are valid, or that has no others. */
  decode(pass: EnginePass): EngineOutput | Promise<EngineOutput>;
}
