// What the methods of a tokenizer are given: texts, messages, tokens, and their checks. Throws KV_INVALID_OPTION and KV_UNKNOWN_OPTION. No state.

import { createError } from '../base/errors.js';
import {
  abortSignal, checkInteger, isOptionsObject, oneOf, optional, readArray, readOptions, text, withDefault, type FieldPlace,
} from '../base/options.js';
import { elementsOf, typedArrayKind } from '../base/typed-arrays.js';

/** One message of a conversation. */
export interface ChatMessage {
  /** `system`, `user`, `assistant`, or what else the template knows: letters, digits, `_` and `-`. */
  readonly role: string;
  /** The text; special tokens in it stay text, and so in all that follows. */
  readonly content: string;
  /** What else the template may read: `tool_calls`, `tool_call_id`, `name`, `reasoning_content`. */
  readonly [more: string]: unknown;
}

/** Options of `LlamaTokenizer.encode`. */
export interface EncodeOptions {
  /**
   * What becomes of special tokens that the text spells out, such as `<|im_end|>`. `text`: they are encoded as any other text, so that no
   * user can end a turn or begin one. `parse`: they become the tokens. Default `text`.
   */
  readonly specialTokens?: 'text' | 'parse' | undefined;
  /**
   * Throws KV_ABORTED where it is aborted before; on a worker thread (`BackgroundTokenizer`) meanwhile, too. Default:
   * none.
   */
  readonly signal?: AbortSignal | undefined;
}

/** Options of `LlamaTokenizer.encodeChat`. */
export type EncodeChatOptions = Pick<EncodeOptions, 'signal'>;

const specialTokensField = withDefault(oneOf(['text', 'parse']), 'text');
const signalSpec = { signal: optional(abortSignal) };
const encodeSpec = { ...signalSpec, specialTokens: specialTokensField };

/** A prompt's text, and what becomes of special tokens in it. */
export function readEncode(given: string, options: EncodeOptions | undefined, owner = 'LlamaTokenizer.encode') {
  const { specialTokens, signal } = readOptions(owner, options, encodeSpec);
  checkSignal(signal);
  return { text: text(given, { owner, option: 'text' }), specialTokens, signal };
}

/** The signal of `encodeChat`. Throws KV_ABORTED. */
export function readChatSignal(options: EncodeChatOptions | undefined, owner = 'LlamaTokenizer.encodeChat'): AbortSignal | undefined {
  const { signal } = readOptions(owner, options, signalSpec);
  checkSignal(signal);
  return signal;
}

function checkSignal(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw createError('KV_ABORTED', { operation: 'tokenizing' }, { cause: signal.reason });
}

/** Copies of the messages, with whatever else a template may want of them; and the template's variables. */
export function readChat(messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>>) {
  const owner = 'LlamaTokenizer.encodeChat';
  if (!isOptionsObject(values)) throw wrong({ owner, option: 'values' }, 'an object', values);
  const read = readArray(messages, { owner, option: 'messages' }, (given, index) => {
    const option = `messages[${index}]`;
    if (!isOptionsObject(given)) throw wrong({ owner, option }, 'a message: `{ role, content }`', given);
    const message: { readonly role?: unknown; readonly content?: unknown } = { ...given };
    return { ...message, role: text(message.role, { owner, option: `${option}.role` }), content: text(message.content, { owner, option: `${option}.content` }) };
  });
  return { messages: read, values: { ...values } };
}

/** Tokens in an array or a typed array. */
export function readTokens(given: readonly number[]): readonly number[] {
  const place = { owner: 'LlamaTokenizer.decode', option: 'tokens' };
  const read = (token: unknown, index: number): number => {
    if (!Number.isSafeInteger(token)) checkInteger(place.owner, `tokens[${index}]`, token);
    return token as number;
  };
  const typed = typedArrayKind(given) === undefined ? undefined : elementsOf(given)!;
  return typed === undefined ? readArray(given, place, read) : Array.from({ length: typed.length }, (_, index) => read(typed.elements[index], index));
}

function wrong(place: FieldPlace, expected: string, received: unknown): Error {
  return createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected, received });
}
