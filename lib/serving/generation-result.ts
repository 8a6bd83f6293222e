// GenerationResult: how a request ended, and its answer. GenerationAdmission: what is known once the request has a
// slot. GenerationListener: what a scheduler calls with both.

import type { SelectionCounts, Sequence } from '../cache/sequence.js';
import type { Promotion } from '../tiers/promotion.js';
import type { HandOver } from '../side/hand-over.js';
import type { TokenLogProbability } from './plain-sampling.js';

/**
 * Why an answer ended: `length`: it has `maxNewTokens` tokens. `stop`: a stop token or a stop string came, or its
 * reader called `finish`.
 */
export type FinishReason = 'length' | 'stop';

/** What a request was answered with. */
export interface GenerationResult {
  /** The answer, without a stop token; with the tokens of a stop string. */
  readonly tokens: Int32Array;
  /** Why it ended: `length` after `maxNewTokens`, `stop` at a stop token, at a stop string or by `stream.finish()`. */
  readonly finishReason: FinishReason;
  /** The token that ended it; undefined where something else did. */
  readonly stopToken: number | undefined;
  /** The string that ended it, of `stopStrings`; undefined where something else did. */
  readonly stopString: string | undefined;
  /** The answer as text, up to a stop string; undefined unless the request has a `tokenizer`. */
  readonly text: string | undefined;
  /** Of each of `tokens`; undefined unless the request has `logProbabilities`. */
  readonly logProbabilities: readonly TokenLogProbability[] | undefined;
  /** Tokens of its prompt. */
  readonly promptTokens: number;
  /** Tokens of the prompt that came from the prefix cache when it was first admitted. */
  readonly cachedTokens: number;
  /** What came from tiers before that; undefined: they were not asked. */
  readonly promotion: Promotion | undefined;
  /**
   * What its selection came to (`GenerationRequest.selection`): the answer is not exact, or the tokens before a
   * preemption are not. Undefined: it is exact.
   */
  readonly selection: SelectionCounts | undefined;
  /** How often it was preempted: lost its slot, and started again later. */
  readonly preemptions: number;
  /** Milliseconds from its submission to its first token. */
  readonly firstTokenMs: number;
  /** Milliseconds from its submission to its end. */
  readonly totalMs: number;
  /**
   * Rows of side tensors, of its prompt and its answer but for the last token, which was not computed. Undefined unless
   * the request has `handOver`. Close it when they were read: until then it keeps their memory, and later requests may
   * wait for that.
   */
  readonly side: HandOver | undefined;
}

/** What is known of a request from its first slot on. */
export interface GenerationAdmission {
  /** Milliseconds from its submission to its first slot. */
  readonly waitMs: number;
  /** Tokens of the prompt that came from the prefix cache. */
  readonly cachedTokens: number;
  /** What came from tiers before; undefined: they were not asked. */
  readonly promotion: Promotion | undefined;
}

/** What follows a request. Called by the batching loop between passes; must not throw. */
export interface GenerationListener {
  /** It has got a slot, for the first time or again. */
  started?(sequence: Sequence): void;
  /** It gives its slot back next; until then its tokens are valid there. */
  leaving?(sequence: Sequence): void;
  token?(token: number): void;
  done(result: GenerationResult): void;
  failed(error: Error): void;
}
