// ApiRequest: what the bodies of `/v1/chat/completions` and `/v1/completions` ask for, read as strictly as options are: what is unknown
// is refused with a suggestion, and what this server does not have is refused by name. null counts as left out. Nothing is tokenized here.

import { createError } from '../base/errors.js';
import { boolean, integer, number, oneOf, optional, readArray, readOptions, string, withDefault, type Field, type OptionsOf } from '../base/options.js';
import type { ChatMessage } from '../llama/index.js';
import { messagesField } from './chat-messages.js';
import { samplingSpec } from './sampling-parameters.js';

/** Which objects a response has. */
export type CompletionKind = 'chat' | 'text';

/** What to answer: a conversation, or one prompt or several as text or tokens. */
export type ApiPrompt = { readonly messages: readonly ChatMessage[] } | { readonly prompts: readonly (string | readonly number[])[] };

/** What a request asks for beside its prompt. */
export type ApiParameters = Omit<OptionsOf<typeof shared>, 'max_tokens'> & {
  readonly max_tokens: number | undefined;
  /** Log-probabilities of the tokens, and of so many most likely ones; undefined: none. */
  readonly logprobs: number | undefined;
};

export interface ApiRequest {
  readonly prompt: ApiPrompt;
  readonly parameters: ApiParameters;
}

type Body = Readonly<Record<string, unknown>>;

/** A parameter that has an effect elsewhere only, and may stand there. */
const ignored: Field<unknown> = (value) => value;

/** A parameter that this server does not have; it may have the values that ask for nothing. */
function unsupported(problem: string, ...harmless: readonly unknown[]): Field<undefined> {
  return (value, { option }) => {
    const isHarmless = value === undefined || harmless.some((each) => JSON.stringify(each) === JSON.stringify(value));
    if (isHarmless) return undefined;
    throw createError('KV_NOT_SUPPORTED', { option, problem, hint: 'Leave it out.' });
  };
}

const mostStops = 16;
const longestStop = 512;

const stopField: Field<readonly string[]> = (value, place) => {
  if (value === undefined) return [];
  const texts = typeof value === 'string' ? [value] : readArray(value, place, (each, index) => string(each, { ...place, option: `${place.option}[${index}]` }));
  const hasRoom = texts.length <= mostStops && texts.every((text) => text !== '' && text.length <= longestStop);
  if (hasRoom) return texts;
  const expected = `at most ${mostStops} strings of 1 to ${longestStop} characters`;
  throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected, received: value });
};

/** Tenants, salts and keys of sessions. */
const nameField: Field<string> = (value, place) => {
  const name = string(value, place);
  if (name.length <= 512) return name;
  throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected: 'at most 512 characters', received: name });
};

const streamOptionsField: Field<{ readonly include_usage: boolean }> = (value, place) =>
  readOptions(place.owner, value, { include_usage: withDefault(boolean, false), include_obfuscation: unsupported('nothing is padded', false) }, place.option);

const noFunctions = 'the server calls no functions';

/** Most likely tokens of a place at most, as OpenAI's. */
const mostLikely = 20;

const shared = {
  ...samplingSpec,
  model: optional(string),
  max_tokens: optional(integer({ min: 1, max: 2 ** 31 - 1 })),
  n: withDefault(integer({ min: 1 }), 1),
  stop: stopField,
  stream: withDefault(boolean, false),
  stream_options: optional(streamOptionsField),
  user: optional(nameField),
  prompt_cache_key: optional(nameField),
  cache_salt: optional(nameField),
  session_hint: optional(oneOf(['back-soon', 'done'])),
  urgency: withDefault(integer({ max: 255 }), 0),
  deadline_ms: optional(number(1)),
  service_tier: ignored,
  metadata: ignored,
  store: unsupported('answers are not stored', false),
};

const chatSpec = {
  ...shared,
  messages: messagesField,
  max_completion_tokens: optional(integer({ min: 1, max: 2 ** 31 - 1 })),
  logprobs: withDefault(boolean, false),
  top_logprobs: withDefault(integer({ max: mostLikely }), 0),
  response_format: unsupported('answers are plain text', { type: 'text' }),
  tools: unsupported(noFunctions, []),
  tool_choice: unsupported(noFunctions, 'none', 'auto'),
  parallel_tool_calls: ignored,
  functions: unsupported(noFunctions, []),
  function_call: unsupported(noFunctions, 'none', 'auto'),
  modalities: unsupported('answers are text', ['text']),
  audio: unsupported('answers are text'),
  prediction: unsupported('nothing is predicted'),
  reasoning_effort: unsupported('the chat template decides'),
  safety_identifier: ignored,
};

const promptField: Field<readonly (string | readonly number[])[]> = (value, place) => {
  if (typeof value === 'string') return [value];
  const token = integer({ max: 2 ** 31 - 1 });
  const tokens = (list: unknown, option: string): readonly number[] =>
    readArray(list, { ...place, option }, (each, index) => token(each, { ...place, option: `${option}[${index}]` }));
  if (Array.isArray(value) && typeof value[0] === 'number') return [tokens(value, place.option)];
  const prompts = Array.isArray(value) ? value as readonly unknown[] : [];
  if (prompts.length > 0) return prompts.map((each, index) => (typeof each === 'string' ? each : tokens(each, `${place.option}[${index}]`)));
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a text, a list of tokens, or an array of texts or of lists of tokens', received: value,
  });
};

const completionSpec = {
  ...shared,
  prompt: promptField,
  logprobs: optional(integer({ max: mostLikely })),
  echo: unsupported('only what is new is answered', false),
  best_of: unsupported('all answers are returned: ask for `n`', 1),
  suffix: unsupported('nothing is filled in before a text'),
};

/** Reads a body of `/v1/chat/completions`. Throws KV_UNKNOWN_OPTION, KV_INVALID_OPTION and KV_NOT_SUPPORTED. */
export function readChatRequest(body: Body): ApiRequest {
  const owner = '/v1/chat/completions';
  const { messages, max_completion_tokens: most, logprobs, top_logprobs: best, ...read } = readOptions(owner, withoutNull(body), chatSpec);
  if (!logprobs && best > 0) {
    throw createError('KV_INVALID_OPTION', { reason: 'range', owner, option: 'top_logprobs', expected: '0 unless `logprobs` is true', received: best });
  }
  return { prompt: { messages }, parameters: { ...read, max_tokens: most ?? read.max_tokens, logprobs: logprobs ? best : undefined } };
}

/** Reads a body of `/v1/completions`, whose answers have 16 tokens where nothing is said, as OpenAI's. Throws as `readChatRequest`. */
export function readCompletionRequest(body: Body): ApiRequest {
  const { prompt: prompts, ...read } = readOptions('/v1/completions', withoutNull(body), completionSpec);
  return { prompt: { prompts }, parameters: { ...read, max_tokens: read.max_tokens ?? 16 } };
}

function withoutNull(body: Body): Body {
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
}
