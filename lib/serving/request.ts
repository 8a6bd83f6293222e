// GenerationRequest: what to generate: meaning, unit, range and default of each option, and how they are read. The
// prompt's tokens are copied, so the caller may use the array again.

import { createError } from '../base/errors.js';
import { cachingField, itemsField, type AcquireOptions } from '../kv-cache/acquire-options.js';
import { sortItems, type PromptItem } from '../prefix/prompt-encoder.js';
import { checkTokens, maxToken, tokensField } from '../prefix/prompt-tokens.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import { selectionField, type SelectionOptions } from '../tiers/selection/selected-text.js';
import {
  abortSignal, arrayOf, callable, checkInteger, integer, number, optional, readArray, readIterable, readOptions, string,
  text, withDefault, type Field, type OptionsOf,
} from '../base/options.js';
import type { SideTensorInfo } from '../side/side-tensors.js';
import type { AnswerTokenizer, TokenPieces } from './answer-text.js';
import { type RequestPart, requestParts } from './engine.js';
import { greedy, rulesOf, type Sampler } from './sampling.js';
import { checkSideFits, checkSideNames, handOverField } from './side-request.js';

type Prompt = Pick<AcquireOptions, 'items' | 'tenant' | 'salt' | 'adapter' | 'caching' | 'priority' | 'needs'>;

/** What to generate: the prompt, how many tokens, and how they are chosen. */
export interface GenerationRequest extends Prompt {
  /** The prompt, 1 token or more, each of the engine's vocabulary where no item covers it. */
  readonly tokens: NonNullable<AcquireOptions['tokens']>;
  /** Most tokens to generate, 1 or more. */
  readonly maxNewTokens: number;
  /** Tokens that end the answer, without being part of it. Default: none. */
  readonly stopTokens?: Iterable<number> | undefined;
  /**
   * Texts that end the answer, none of them empty: `text` ends before the first that comes, wherever it begins and ends
   * in the tokens. `tokens` has those of the stop string too. They need a `tokenizer`. Default: none.
   */
  readonly stopStrings?: readonly string[] | undefined;
  /**
   * Makes text of the answer, for `stopStrings`, `result.text` and `stream.pieces()`: a LlamaTokenizer, say. Default:
   * none.
   */
  readonly tokenizer?: AnswerTokenizer | undefined;
  /**
   * Gives the log-probability of each token of the answer, and those of so many most likely tokens, 0 … 1,000, by the
   * logits as the engine gave them: in `result.logProbabilities` and the stream's. The engine must answer with logits.
   * Default: none.
   */
  readonly logProbabilities?: number | undefined;
  /** How the next token is chosen. Default `greedy`. Not called where the engine answers with tokens. */
  readonly sampler?: Sampler | undefined;
  /**
   * 0 … 255: a more urgent request is admitted first, and preempts less urgent ones where it needs their slot or
   * memory. Default 0.
   */
  readonly urgency?: number | undefined;
  /**
   * Ms from submission after which it ends with KV_DEADLINE_EXCEEDED, waiting or running, at once; 0 or more. Default:
   * none.
   */
  readonly deadlineMs?: number | undefined;
  /**
   * Hands rows of side tensors over to a next stage: `result.side`, and `stream.side` while it grows. `true`: of all
   * that it carries (`needs`). Names: of these. The result's must be closed. Default `false`.
   */
  readonly handOver?: boolean | readonly string[] | undefined;
  /**
   * Data for the engine beside the request's tokens, as `EnginePass.inputs`: rows that the stage before has handed
   * over, or those of an image. It must follow from tokens, items, tenant, salt and adapter, since requests that are
   * alike in these share K and V. Default: undefined.
   */
  readonly input?: unknown;
  /**
   * Called once, when no pass of the engine reads `input` any more: after the request has ended, which it may do in the
   * middle of a pass, and that pass is over. Let go there of what `input` lies in: close hand-overs, release images.
   * Default: nothing is called.
   */
  readonly releaseInput?: (() => void) | undefined;
  /**
   * Loads only the important tokens of the prompt's text in tiers: sooner, and the answer is not exact
   * (docs/importance.md). Text on the device is used whole; where tiers have no more, the answer is exact
   * (`result.selection` is undefined). Needs an engine with `canSelect`, `caching` `read-write` or `read`, and neither
   * `needs` nor `handOver`. Default: none.
   */
  readonly selection?: SelectionOptions | undefined;
  /**
   * For an `order` of your own, which sees it as `OrderedRequest.orderValue`, for example a client's price. Default:
   * undefined.
   */
  readonly orderValue?: unknown;
  /** Ends it with KV_ABORTED, at once. Default: none. */
  readonly signal?: AbortSignal | undefined;
}

const stopField: Field<ReadonlySet<number>> = (value, place) => {
  const stops = new Set<number>();
  // each checked before the next is read: the iterable may be endless
  for (const token of readIterable(value, place, 'an iterable of token ids')) {
    checkInteger(place.owner, `each of ${place.option}`, token, 0, maxToken);
    stops.add(token);
  }
  return stops;
};

const stopStringsField: Field<readonly string[]> = (value, place) => readArray(value, place, (each, index) => {
  const option = `${place.option}[${index}]`;
  const text = string(each, { ...place, option });
  if (text !== '') return text;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, option, expected: 'a text of at least 1 character', received: text,
  });
});

const piecesOf = callable<() => TokenPieces>();

/** Reads a tokenizer's `pieces`, which is called as its method. */
const tokenizerField: Field<() => TokenPieces> = (value, place) => {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: 'a tokenizer with `pieces()`', received: value,
    });
  }
  const pieces = piecesOf((value as Partial<AnswerTokenizer>).pieces, {
    ...place, option: `${place.option}.pieces`,
  });
  return () => Reflect.apply(pieces, value, []);
};

const anything: Field<unknown> = (value) => value;

const noTokens: ReadonlySet<number> = new Set();
const noStrings: readonly string[] = [];

const spec = {
  tokens: tokensField,
  items: itemsField,
  maxNewTokens: integer({ min: 1, max: maxToken }),
  stopTokens: withDefault(stopField, noTokens),
  stopStrings: withDefault(stopStringsField, noStrings),
  tokenizer: optional(tokenizerField),
  logProbabilities: optional(integer({ max: 1_000 })),
  sampler: withDefault(callable<Sampler>(), greedy),
  tenant: optional(text),
  salt: optional(text),
  adapter: optional(text),
  caching: cachingField,
  priority: withDefault(integer({ max: 255 }), 0),
  urgency: withDefault(integer({ max: 255 }), 0),
  deadlineMs: optional(number(0)),
  signal: optional(abortSignal),
  needs: optional(arrayOf(string)),
  handOver: handOverField,
  selection: selectionField,
  orderValue: anything,
  input: anything,
  releaseInput: optional(callable<() => void>()),
};

/** What requests must agree with. */
export interface ServedBy {
  readonly vocabularyTokens: number;
  readonly sideTensors: readonly SideTensorInfo[];
  /** Whether the engine computes sequences that hold selected tokens. */
  readonly canSelect: boolean;
  /** What the engine reads beside tokens. */
  readonly reads: readonly RequestPart[];
  /** Of which a selection is asked. */
  readonly cache?: KvCache | undefined;
  /** Whether the cache keeps prefixes: else nothing of a request is kept for others. */
  readonly keepsPrefixes: boolean;
}

export type ReadRequest = ReturnType<typeof readRequest>;

/** Options of a sampler that other libraries have in the request. */
const samplerOptions = [
  'temperature', 'topK', 'topP', 'minP', 'seed', 'repetitionPenalty', 'presencePenalty', 'frequencyPenalty',
  'logitBias',
  'top_k', 'top_p', 'min_p', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'logit_bias',
];

/**
 * Checked options with defaults, for an engine with this vocabulary and a cache with these side tensors: a token that
 * only a pass would find wrong would fail all requests of the pass. `index`: place of the request in a list, which the
 * error names. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION.
 */
export function readRequest(
  owner: string, options: GenerationRequest,
  { vocabularyTokens, sideTensors, canSelect, reads, keepsPrefixes, cache }: ServedBy, index?: number,
) {
  const path = index === undefined ? '' : `requests[${index}]`;
  const prefix = index === undefined ? '' : `${path}.`;
  if (options === undefined) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner, option: path || 'request', expected: 'an object', received: options,
    });
  }
  checkSamplerOptions(owner, options, prefix);
  const { tokenizer: pieces, ...read } = readOptions(owner, options, spec, path);
  const { items } = read;
  const tokens = checkTokens(owner, read.tokens, items, `${prefix}tokens`);
  if (tokens.length === 0) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option: `${prefix}tokens`, expected: 'a prompt of at least 1 token',
      received: options.tokens,
    });
  }
  const sorted = items.length === 0 ? items : sortItems(owner, items, tokens.length);
  checkVocabulary(owner, `${prefix}tokens`, tokens, sorted, vocabularyTokens);
  checkSideNames(owner, read, sideTensors, prefix);
  checkReads(owner, read, reads, prefix);
  checkSelection(owner, `${prefix}selection`, read, canSelect);
  if (read.selection !== undefined) {
    cache?.prefixes.tiers?.selections.checkRules(owner, `${prefix}selection`, read.selection);
  }
  checkBias(owner, `${prefix}sampler`, read.sampler, vocabularyTokens);
  if (pieces === undefined && read.stopStrings.length > 0) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner, option: `${prefix}tokenizer`,
      expected: 'a tokenizer with `pieces()`, which `stopStrings` need', received: undefined,
    });
  }
  return { ...read, items: sorted, pieces, tokens, caching: keepsPrefixes ? read.caching : 'off' };
}

/** Throws KV_UNKNOWN_OPTION, which suggests the sampler that was meant. */
function checkSamplerOptions(owner: string, options: object | null, prefix: string): void {
  if (typeof options !== 'object' || options === null) return;
  const name = samplerOptions.find((option) => Object.hasOwn(options, option));
  if (name === undefined) return;
  const value: unknown = (options as Readonly<Record<string, unknown>>)[name];
  const option = name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
  const suggestion = name === 'temperature' && value === 0 ? `${prefix}sampler: greedy`
    : `${prefix}sampler: randomSampler({ ${option} })`;
  throw createError('KV_UNKNOWN_OPTION', { owner, option: prefix + name, suggestion });
}

/** Requests that can be iterated once. Throws KV_INVALID_OPTION. */
export function checkRequests(owner: string, requests: Iterable<GenerationRequest>): Iterable<GenerationRequest> {
  const place = { owner, option: 'requests' };
  return readIterable(requests, place, 'an array or another iterable of requests') as Iterable<GenerationRequest>;
}

/** Throws KV_INVALID_OPTION where the engine would compute an answer without a part of the request. */
function checkReads(
  owner: string, read: Pick<OptionsOf<typeof spec>, RequestPart>, reads: readonly RequestPart[], prefix: string,
): void {
  for (const part of requestParts) {
    if (reads.includes(part)) continue;
    const { [part]: received } = read;
    if (received === undefined || (part === 'items' && read.items.length === 0)) continue;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option: prefix + part, expected: 'left out: the engine does not read it (`reads`)', received,
    });
  }
}

/** Throws KV_INVALID_OPTION where a selection has no meaning. */
function checkSelection(
  owner: string, option: string, {
    selection, caching, needs = [], handOver,
  }: Pick<OptionsOf<typeof spec>, 'selection' | 'caching' | 'needs' | 'handOver'>, canSelect: boolean,
): void {
  if (selection === undefined) return;
  const refuse = (why: string): Error => createError('KV_INVALID_OPTION', {
    reason: 'range', owner, option, expected: `left out: ${why}`, received: selection,
  });
  if (!canSelect) throw refuse('the engine computes no sequences of selected tokens (`canSelect`)');
  if (caching === 'off' || caching === 'write') throw refuse(`with \`caching: '${caching}'\` no stored text is read`);
  if (needs.length > 0 || handOver !== false) {
    throw refuse('a sequence of selected tokens carries no side tensors (`needs`, `handOver`)');
  }
}

/** Throws KV_INVALID_OPTION where a sampler biases a token that the engine does not have. */
function checkBias(owner: string, option: string, sampler: Sampler, vocabularyTokens: number): void {
  for (const token of rulesOf(sampler)?.biasTokens ?? []) {
    if (token < vocabularyTokens) continue;
    checkInteger(
      owner, `each token of ${option}.logitBias`, token, 0, vocabularyTokens - 1,
      "It is not in the engine's vocabulary.");
  }
}

/** Throws KV_INVALID_OPTION unless every token that no item covers is in the engine's vocabulary. */
function checkVocabulary(
  owner: string, option: string, tokens: Int32Array, items: readonly PromptItem[], vocabularyTokens: number,
): void {
  let from = 0;
  for (let next = 0; next <= items.length; next += 1) {
    const to = items[next]?.at ?? tokens.length;
    for (let at = from; at < to; at += 1) {
      if (tokens[at]! >= vocabularyTokens) {
        checkInteger(
          owner, `${option}[${at}]`, tokens[at], 0, vocabularyTokens - 1, "It is not in the engine's vocabulary.");
      }
    }
    from = to + (items[next]?.length ?? 0);
  }
}

/** What a cache may take for K and V, and for its side tensors. */
export interface Budgets {
  readonly pages: number;
  readonly sideBytes: number;
}

/** Throws KV_CLOSED. */
export function budgetsOf(cache: KvCache): Budgets {
  cache.lifetime.check('serve a request');
  return {
    pages: cache.pool.counts().budgetPages,
    sideBytes: cache.sideTensors.length > 0 ? cache.sideCounts().budgetBytes : 0,
  };
}

/**
 * Throws KV_LENGTH_OUT_OF_RANGE or KV_OUT_OF_PAGES when the request would not fit an empty cache to its last token, and
 * KV_CLOSED. `budgets`: of that cache; default: as they are.
 */
export function checkFits(request: ReadRequest, cache: KvCache, budgets?: Budgets): void {
  const { tokens, maxNewTokens } = request;
  cache.lifetime.checkBeginning('serve a request');
  const peakTokens = tokens.length + maxNewTokens - 1; // the last token is never fed back, so it has no K and V
  const { maxTokens } = cache.layout;
  if (peakTokens > maxTokens) throw createError('KV_LENGTH_OUT_OF_RANGE', { tokens: peakTokens, maxTokens });
  checkBudgets(request, peakTokens, cache, budgets ?? budgetsOf(cache));
}

/** Throws KV_OUT_OF_PAGES when so many tokens of the request are more than the budgets hold. */
export function checkBudgets(
  request: ReadRequest, tokens: number, cache: KvCache, { pages: budgetPages, sideBytes }: Budgets,
): void {
  const { layout } = cache;
  const { pagesPerRow, pageBytes } = layout;
  const needRows = layout.rowsFor(tokens);
  const needPages = cache.pagesFor(tokens, Math.min(tokens, request.tokens.length));
  if (needPages <= budgetPages) return checkSideFits(request, tokens, cache, sideBytes);
  throw createError('KV_OUT_OF_PAGES', {
    needRows, haveRows: Math.floor(budgetPages / pagesPerRow), needPages, havePages: budgetPages,
    budgetBytes: budgetPages * pageBytes, pageBytes, slots: [], pagesPerRow,
  });
}
