// ModelServerOptions: what the server serves and how much it lets clients do: meaning, unit, range and default of each, and how they
// are read. The tokenizer is checked for its functions only.

import { createError } from '../base/errors.js';
import {
  arrayOf, instanceOf, integer, number, oneOf, optional, readOptions, string, withDefault, withoutRevoked, type Field,
} from '../base/options.js';
import { OnlineScheduler, type AnswerTokenizer } from '../index.js';
import type { ChatMessage } from '../llama/index.js';
import { apiKeyField, type ApiKey } from './api-keys.js';

/** What the server asks of a tokenizer beside its text. */
export interface ServedEncodeOptions {
  /**
   * What becomes of special tokens that the text spells out. `text`: they stay text, as in what clients send. `parse`:
   * they are the tokens, as in `<tool_call>` before a call that was asked for.
   */
  readonly specialTokens?: 'text' | 'parse' | undefined;
  /** The client has left: a promise may reject. */
  readonly signal?: AbortSignal | undefined;
}

/** What the server needs of a tokenizer; `BackgroundTokenizer` and `LlamaTokenizer` have it. */
export interface ServedTokenizer extends AnswerTokenizer {
  /** Whether `encodeChat` can be called. */
  readonly hasChatTemplate: boolean;
  /** Tokens of a plain text, or a promise of them. */
  encode(text: string, options: ServedEncodeOptions): readonly number[] | Promise<readonly number[]>;
  /** Tokens of a conversation, up to where the model is to answer, or a promise of them. Throws an error of this package where the messages are wrong. */
  encodeChat(
    messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>>, options: Pick<ServedEncodeOptions, 'signal'>,
  ): readonly number[] | Promise<readonly number[]>;
  /**
   * Bytes of a token, for `logprobs`; undefined: not known. Default: those of its text, unless that is a part of a
   * character.
   */
  bytesOf?(token: number): readonly number[] | Uint8Array | undefined;
}

/** Options of `ModelServer`. */
export interface ModelServerOptions {
  /** Computes the answers. The server closes it when it is closed itself. */
  readonly scheduler: OnlineScheduler;
  /** Text to tokens and back. */
  readonly tokenizer: ServedTokenizer;
  /** The model's name in `/v1/models`, in requests and in answers. */
  readonly modelName: string;
  /** Tokens that end an answer. Default: none. */
  readonly stopTokens?: readonly number[] | undefined;
  /** Tokens of a prompt and its answer together, at most, 1 or more. */
  readonly maxTokens: number;
  /**
   * Keys of which a client must send one, as `Authorization: Bearer KEY`, and whose they are: a key alone is a tenant
   * of its own. Default: none is asked for, and the tenant is the `user` that a request names.
   */
  readonly apiKeys?: readonly (string | ApiKey)[] | undefined;
  /** The most urgent that a request can be, 0 … 255: `urgency` above it counts as this. Default 0: all are alike. */
  readonly maxUrgency?: number | undefined;
  /**
   * Names that `Host` may have on a loopback address beside localhost, addresses and this machine's name; '*': any.
   * Default: none.
   */
  readonly allowedHosts?: readonly string[] | undefined;
  /**
   * Pages that may use it from a browser (CORS), such as `https://app.example`; '*': any. Default: none but its own.
   */
  readonly corsOrigins?: readonly string[] | undefined;
  /**
   * Parameters that the server does not know: `lenient`: ignored, and named in the header `x-ignored-parameters`;
   * `strict`: refused. Default `lenient`.
   */
  readonly parameters?: 'lenient' | 'strict' | undefined;
  /**
   * Ms without an event after which a stream gets a comment, so that no proxy ends it, more than 0, at most 2³¹ − 1.
   * Default 4,000.
   */
  readonly commentMs?: number | undefined;
  /** Bytes of a request's body at most, 1 or more. Default: 65,536 and 32 for each of `maxTokens`. */
  readonly maxBodyBytes?: number | undefined;
  /** Characters of a prompt at most, 1 or more: a longer one is refused before it is tokenized. Default: 16 for each of `maxTokens`. */
  readonly maxPromptCharacters?: number | undefined;
  /** Answers of one HTTP request at most (`n` times prompts), 1 or more. Default 16. */
  readonly maxChoices?: number | undefined;
  /** Connections at a time at most, 1 or more. Default 1,024. */
  readonly maxConnections?: number | undefined;
  /**
   * Of these from one address, or one IPv6 network of 64 bits, at most, 1 or more: one more closes the idle one of that
   * address that asked nothing for longest. Default: half of `maxConnections`, at least 1. Behind a proxy all have its
   * address.
   */
  readonly maxConnectionsPerAddress?: number | undefined;
  /**
   * Ms that an idle connection is kept for a next request, 1 … 2³⁰: longer than proxies and clients keep theirs.
   * Default 100,000.
   */
  readonly keepAliveMs?: number | undefined;
  /** Ms that a client may take to send a request, more than 0, at most 2³¹ − 1. Default 30,000. */
  readonly requestTimeoutMs?: number | undefined;
  /** Ms after which a client that does not read its answer is disconnected, more than 0, at most 2³¹ − 1. Default 60,000. */
  readonly stallTimeoutMs?: number | undefined;
  /** Ms that an answer may take from its submission on; clients may ask for less (`deadline_ms`). More than 0. Default 600,000. */
  readonly deadlineMs?: number | undefined;
  /** Ms that `close` lets answers go on, 0 … 2³¹ − 1. Default 30,000. */
  readonly graceMs?: number | undefined;
}

const tokenizerFunctions = ['encode', 'encodeChat', 'pieces'] as const;

const tokenizerField: Field<ServedTokenizer> = (value, place) => {
  const isTokenizer = typeof value === 'object' && value !== null
    && withoutRevoked(value, place, () => tokenizerFunctions.every((name) => typeof (value as Partial<ServedTokenizer>)[name] === 'function'));
  if (isTokenizer) return value as ServedTokenizer;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a tokenizer: `encode`, `encodeChat` and `pieces`, as LlamaTokenizer has them', received: value,
  });
};

const schedulerField: Field<OnlineScheduler> = instanceOf({
  name: 'OnlineScheduler', isInstance: (value): value is OnlineScheduler => OnlineScheduler.isInstance(value),
}, 'an OnlineScheduler');

/** The longest that Node's timers wait, 24 days; they fire at once for more. */
const longestMs = 2 ** 31 - 1;
const waitMs = number(1e-3, longestMs);

const spec = {
  scheduler: schedulerField,
  tokenizer: tokenizerField,
  modelName: string,
  stopTokens: withDefault(arrayOf(integer()), []),
  maxTokens: integer({ min: 1 }),
  apiKeys: withDefault(arrayOf(apiKeyField), []),
  maxUrgency: withDefault(integer({ max: 255 }), 0),
  allowedHosts: withDefault(arrayOf(string), []),
  corsOrigins: withDefault(arrayOf(string), []),
  parameters: withDefault(oneOf(['lenient', 'strict']), 'lenient'),
  commentMs: withDefault(waitMs, 4_000),
  maxBodyBytes: optional(integer({ min: 1 })),
  maxPromptCharacters: optional(integer({ min: 1 })),
  maxChoices: withDefault(integer({ min: 1 }), 16),
  maxConnections: withDefault(integer({ min: 1 }), 1_024),
  maxConnectionsPerAddress: optional(integer({ min: 1 })),
  keepAliveMs: withDefault(integer({ min: 1, max: 2 ** 30 }), 100_000),
  requestTimeoutMs: withDefault(waitMs, 30_000),
  stallTimeoutMs: withDefault(waitMs, 60_000),
  deadlineMs: withDefault(number(1e-3), 600_000),
  graceMs: withDefault(number(0, longestMs), 30_000),
};

export type ReadServerOptions = ReturnType<typeof readServerOptions>;

/** Checked options with defaults. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readServerOptions(options: ModelServerOptions) {
  const read = readOptions('ModelServer', options, spec);
  return {
    ...read, maxBodyBytes: read.maxBodyBytes ?? 65_536 + 32 * read.maxTokens,
    maxPromptCharacters: read.maxPromptCharacters ?? 16 * read.maxTokens,
    maxConnectionsPerAddress: read.maxConnectionsPerAddress ?? Math.ceil(read.maxConnections / 2),
  };
}
