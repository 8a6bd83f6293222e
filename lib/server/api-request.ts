// ApiRequest: what the bodies of `/v1/chat/completions` and `/v1/completions` ask for, read as strictly as options are:
// what is unknown is ignored and named, or refused with a suggestion, as the server's option says; what would change
// the answer's form, and this server does not have, is refused by name. null counts as left out. Nothing is tokenized
// here.

import { createError } from '../base/errors.js';
import {
  arrayOf, boolean, integer, isOptionsObject, number, oneOf, optional, readArray, readOptions, string, withDefault,
  type Field, type FieldSpec, type OptionsOf,
} from '../base/options.js';
import type { ChatMessage } from '../llama/index.js';
import { ignored, messagesField } from './chat-messages.js';
import { samplingSpec } from './sampling-parameters.js';
import { offeredTools, toolChoiceField, toolsField } from './tools.js';
import type { UnknownParameters } from './unknown-parameters.js';

/** Which objects a response has. */
export type CompletionKind = 'chat' | 'text';

/** What to answer: a conversation, or one prompt or several as text or tokens. */
export type ApiPrompt = Conversation | { readonly prompts: readonly (string | readonly number[])[] };

/** A conversation, and what the chat template is told besides. */
export interface Conversation {
  readonly messages: readonly ChatMessage[];
  readonly values: Readonly<Record<string, unknown>>;
}

/** What a request asks for beside its prompt. */
export type ApiParameters = Omit<OptionsOf<typeof shared>, 'max_tokens'> & {
  readonly max_tokens: number | undefined;
  /** Names of the functions that the model is told of. */
  readonly tools: ReadonlySet<string>;
  /** Calls of an answer at most. */
  readonly mostCalls: number;
  /** Whether an answer is to be a call. */
  readonly mustCall: boolean;
  /** Whether the prompt is a part of the answer. */
  readonly echo: boolean;
  /** Log-probabilities of the tokens, and of so many most likely ones; undefined: none. */
  readonly logprobs: number | undefined;
};

export interface ApiRequest {
  readonly prompt: ApiPrompt;
  readonly parameters: ApiParameters;
}

type Body = Readonly<Record<string, unknown>>;

/** A parameter that this server does not have; it may have the values that ask for nothing. */
function unsupported(problem: string, hint: string, ...harmless: readonly unknown[]): Field<undefined> {
  return (value, { option }) => {
    const isHarmless = value === undefined || harmless.some((each) => JSON.stringify(each) === JSON.stringify(value));
    if (isHarmless) return undefined;
    throw createError('KV_NOT_SUPPORTED', { option, problem, hint });
  };
}

const mostStops = 16;
const longestStop = 512;

const stopField: Field<readonly string[]> = (value, place) => {
  if (value === undefined || value === '') return [];
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
  readOptions(
    place.owner, value,
    { include_usage: withDefault(boolean, false), include_obfuscation: ignored, continuous_usage_stats: ignored },
    place.option,
  );

const object: Field<Readonly<Record<string, unknown>>> = (value, place) => {
  if (isOptionsObject(value)) return value as Readonly<Record<string, unknown>>;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'an object', received: value });
};

const mostStopTokens = 128;

const stopTokensField: Field<readonly number[]> = (value, place) => {
  const tokens = value === undefined ? [] : arrayOf(integer({ max: 2 ** 31 - 1 }))(value, place);
  if (tokens.length <= mostStopTokens) return tokens;
  throw createError(
    'KV_INVALID_OPTION',
    { reason: 'range', ...place, expected: `at most ${mostStopTokens} tokens`, received: tokens.length },
  );
};

/** Most likely tokens of a place at most, as OpenAI's. */
const mostLikely = 20;

const freeText = 'answers are free text: nothing holds the model to a form';

/** Undefined: as many as are left, for which other servers write -1. */
const tokensField: Field<number | undefined> = (value, place) =>
  (value === undefined || value === -1 ? undefined : integer({ max: 2 ** 31 - 1 })(value, place));

const shared = {
  ...samplingSpec,
  model: optional(string),
  max_tokens: tokensField,
  min_tokens: withDefault(integer({ max: 2 ** 31 - 1 }), 0),
  ignore_eos: withDefault(boolean, false),
  stop_token_ids: stopTokensField,
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
  safety_identifier: ignored,
  store: unsupported('answers are not stored', 'Leave it out.', false),
  response_format: unsupported(freeText, 'Ask for JSON in the prompt, or describe it as the parameters of a tool, and check what comes.', { type: 'text' }),
  ...Object.fromEntries(['guided_json', 'guided_regex', 'guided_choice', 'guided_grammar', 'structured_outputs', 'json_schema', 'grammar'].map((name) =>
    [name, unsupported(freeText, 'Say it in the prompt, and check what comes.')])),
};

const chatSpec = {
  ...shared,
  messages: messagesField,
  max_completion_tokens: tokensField,
  logprobs: withDefault(boolean, false),
  top_logprobs: withDefault(integer({ max: mostLikely }), 0),
  tools: toolsField,
  tool_choice: toolChoiceField,
  parallel_tool_calls: withDefault(boolean, true),
  chat_template_kwargs: optional(object),
  reasoning_effort: optional(string),
  add_generation_prompt: unsupported('the model always answers', 'Leave it out.', true),
  continue_final_message: unsupported(
    'the model answers the last message', 'Send what is to be continued to `/v1/completions`.', false,
  ),
  functions: unsupported('its place is taken by `tools`', 'Send `tools`.', []),
  function_call: unsupported('its place is taken by `tool_choice`', 'Send `tool_choice`.', 'none', 'auto'),
  modalities: unsupported('answers are text', 'Leave it out.', ['text']),
  audio: unsupported('answers are text', 'Leave it out.'),
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
  echo: withDefault(boolean, false),
  best_of: unsupported('all answers are returned', 'Ask for `n` answers, and choose by their `logprobs`.', 1),
  suffix: unsupported('nothing is filled in before a text', "Write the model's own marks for it into the prompt.", ''),
};

/**
 * Reads a body of `/v1/chat/completions`. `unknown`: takes what is unknown, which is refused without it. Throws
 * KV_UNKNOWN_OPTION, KV_INVALID_OPTION and KV_NOT_SUPPORTED.
 */
export function readChatRequest(body: Body, unknown: UnknownParameters | undefined): ApiRequest {
  const owner = '/v1/chat/completions';
  const {
    messages, max_completion_tokens: most, logprobs, top_logprobs: best, tools, tool_choice: choice,
    parallel_tool_calls: isParallel,
    chat_template_kwargs: kwargs, reasoning_effort: effort, ...read
  } = readOptions(owner, knownOf(body, chatSpec, unknown), chatSpec);
  if (!logprobs && best > 0) {
    throw createError('KV_INVALID_OPTION', { reason: 'range', owner, option: 'top_logprobs', expected: '0 unless `logprobs` is true', received: best });
  }
  const offered = offeredTools(tools, choice, owner);
  const values = {
    ...effort === undefined ? {} : { reasoning_effort: effort }, ...effort === 'none' ? { enable_thinking: false } : {},
    ...kwargs,
    ...offered.length === 0 ? {} : { tools: offered, tool_choice: choice },
  };
  return {
    prompt: { messages, values },
    parameters: {
      ...read, max_tokens: most ?? read.max_tokens, logprobs: logprobs ? best : undefined, echo: false,
      tools: new Set(offered.map(({ function: { name } }) => name)), mostCalls: isParallel ? Infinity : 1,
      mustCall: choice === 'required' || typeof choice === 'object',
    },
  };
}

/** Reads a body of `/v1/completions`, whose answers have 16 tokens where nothing is said, as OpenAI's. Throws as `readChatRequest`. */
export function readCompletionRequest(body: Body, unknown: UnknownParameters | undefined): ApiRequest {
  const {
    prompt: prompts, ...read
  } = readOptions('/v1/completions', knownOf(body, completionSpec, unknown), completionSpec);
  return {
    prompt: { prompts },
    parameters: { ...read, max_tokens: read.max_tokens ?? 16, tools: noTools, mostCalls: 0, mustCall: false },
  };
}

const noTools: ReadonlySet<string> = new Set();

function knownOf(body: Body, spec: FieldSpec, unknown: UnknownParameters | undefined): Body {
  const given = withoutNull(body);
  return unknown === undefined ? given : unknown.takenFrom(given, spec);
}

function withoutNull(body: Body): Body {
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
}
