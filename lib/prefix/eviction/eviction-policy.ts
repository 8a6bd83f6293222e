// EvictionPolicy: which cached text goes first when rows are needed. A policy orders the nodes that no sequence uses;
// the pool tells it which those are and asks for victims. Those of the package have no other means than a user's own.
// Pure: no clock but the one given.

import { createError } from '../../base/errors.js';
import type { PrefixDomain } from '../domain.js';

/**
 * The pool adds the nodes of a path from the leaf up, so that a node is always more recent than those below it. A
 * policy must never prefer a parent to its child: `victim` is a leaf. All calls take the same time whatever the pool's
 * size, or nearly so.
 */
export interface EvictionPolicy {
  /** The last sequence that used the node is over: it is the most recent. It is in no list of the policy. */
  add(node: number): void;
  /** The node is in use, evicted, or part of its child now. */
  remove(node: number): void;
  /**
   * `upper` was cut off the front of `lower`, which is in the pool: it goes when `lower` has gone, and before what
   * follows that.
   */
  split(upper: number, lower: number): void;
  /**
   * A leaf of the pool whose last rows are to go, or -1 when the policy lets none go: it withholds all that is there.
   */
  victim(): number;
  /**
   * Writes leaves of the pool of which any may go now, the victim first, and returns how many: no more than `leaves`
   * has room for. Where a text has to make way for a new one as a whole, one is chosen whose memory suits that.
   * Default: the victim alone.
   */
  victims?(leaves: Int32Array): number;
  /**
   * Whether `victim` does not return the node for now, however short rows are. Asked when a sequence that used it is
   * released, and for those of which it was true then, again whenever rows are counted: it may become false by itself,
   * not true. Of a node in use: whether it will be withheld once it is added. Rows of such text do not count as
   * obtainable. Default: no node is.
   */
  withholds?(node: number): boolean;
  /**
   * Of a node that it withholds: whether it will do so until a sequence uses the text again. A scheduler's request that
   * lacks memory of such text alone ends with an error at once; where other text is withheld, it waits. Default: false.
   */
  withholdsForGood?(node: number): boolean;
  /**
   * Share of the memory budget of side tensors, 0 … 1, that rows of withheld text take at most while no sequence uses
   * them. Where more is needed, the rows above it go, those used longest ago first. Default: 1.
   */
  readonly withheldShare?: number;
  /**
   * With which level, 0 … 255, tiers below the device keep text of requests of a priority level: nothing expires there,
   * and text of the lowest level goes first. Default: 0, all text is alike.
   */
  lastingLevel?(level: number): number;
  /**
   * Whether text that tiers have is worth more on the device than the victim. Asked for text of which requests with a
   * selection have read, when it would take the room of other text; it is brought there in the background. Default: no
   * text is brought but for requests.
   */
  isWorthRoom?: ((text: OfferedText) => boolean) | undefined;
  /**
   * Tokens of that victim, from the start of the text, after which another node may be a better victim; 0: take all of
   * it.
   */
  floorTokens?(victim: number): number;
  /**
   * A sequence of `request` was released whose text ends in `node` and has `tokens` tokens. Those of its nodes that no
   * other sequence uses have been added.
   */
  observe?(node: number, tokens: number, request: ReleasedRequest): void;
}

/**
 * What eviction policies see of a request whose sequence was released. One object for all requests, valid during the
 * call.
 */
export interface ReleasedRequest {
  /** Tokens of its prompt, also of those that were not computed; of a fork those of the request that it comes from. */
  readonly promptTokens: number;
  /** Tokens of the prompt that were not cached when the sequence began. */
  readonly newTokens: number;
  /** Tokens of the text behind the prompt: of the answer, and what was appended after it. */
  readonly answerTokens: number;
}

/** What eviction policies see of the nodes. Read only, and valid during a call. */
export interface NodeView {
  /** The node above, or -1 for a root. */
  readonly parent: Int32Array;
  /** Tokens before the node, from the start of the text. */
  readonly from: Int32Array;
  /** Tokens up to its end. */
  readonly to: Int32Array;
  /** Some child, or -1 for a leaf. */
  readonly firstChild: Int32Array;
  /** Sequences that have been released with this node in their text. */
  readonly uses: Float64Array;
  /** Tick of the last of them. */
  readonly lastUse: Float64Array;
  /** Highest priority level of those sequences, 0 by default. */
  readonly level: Uint8Array;
}

/** A run of cached tokens. */
export interface CachedExtent {
  /** Tokens before it, from the start of its text. */
  readonly from: number;
  /** Tokens up to its end. */
  readonly to: number;
  /** Copies its text: the tokens from the start of the text to the extent's end. */
  readonly copyText: () => Int32Array;
}

/** What requests with a selection have made of text that tiers have (docs/importance.md). A hint. */
export interface SelectedExtent {
  /** How many of its tokens they have chosen, on average. Tokens in blocks of which none has chosen count whole. */
  readonly chosenTokens: number;
  /**
   * How often the text was used, as tiers count it: those uses too for which it was not on the device. Halves now and
   * then, so that it fades.
   */
  readonly uses: number;
}

/** Text in tiers that may be brought to the device. One object for all questions, valid during the call. */
export interface OfferedText extends SelectedExtent {
  /** Its length. */
  readonly tokens: number;
}

/** What selections have made of an extent of text: see `EvictionContext.selected`. */
export type SelectedOf = (domain: PrefixDomain, extent: CachedExtent) => SelectedExtent | undefined;

/** What a policy is made for. */
export interface EvictionContext {
  /** The texts' numbers, by node. Read only. */
  readonly nodes: NodeView;
  /** Copies the tokens [from, to) of the text that ends in `node` into `target` at `start`. Walks up from the node. */
  readonly copyText: (node: number, from: number, to: number, target: Int32Array, start: number) => void;
  /**
   * What requests with a selection have made of the tokens [from, to) of that text; undefined: none has chosen of them.
   */
  readonly selected: (node: number, from: number, to: number) => SelectedExtent | undefined;
  /** Rows that hang on a node. */
  readonly rowsOf: (node: number) => number;
  /** Such rows as the memory budget holds at the moment; Infinity when there is none. */
  readonly budgetRows: () => number;
  /** Tokens that the pool can hold; Infinity when it has no bound. */
  readonly poolTokens: number;
  /** A number of the cache's own that clients cannot guess: for a policy that keeps hashes of what they sent. */
  readonly hashSeed: number;
}

/** Makes the policy of one prefix index, once. */
export type EvictionPolicyFactory = (context: EvictionContext) => EvictionPolicy;

/** What the factory makes. Throws KV_INVALID_OPTION when that is no policy. */
export function makePolicy(factory: EvictionPolicyFactory, context: EvictionContext): EvictionPolicy {
  const policy: unknown = factory(context);
  const isPolicy = typeof policy === 'object' && policy !== null
    && (['add', 'remove', 'split', 'victim'] as const).every((
      method,
    ) => typeof (policy as EvictionPolicy)[method] === 'function');
  if (isPolicy) return policy as EvictionPolicy;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'PrefixIndex', option: 'prefixCache.policy', received: policy, isReturned: true,
    expected: 'a function that returns an object with the methods `add`, `remove`, `split` and `victim`',
  });
}
