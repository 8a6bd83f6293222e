// The messages of a chat request, as clients keep them: roles, texts, the calls of functions and what came of these.
// What other servers write into an answer and what carries nothing is ignored; parts that are neither text nor refusal
// are refused by name.

import { createError } from '../base/errors.js';
import {
  isOptionsObject, oneOf, optional, readArray, readOptions, string, text, type Field, type FieldPlace,
} from '../base/options.js';
import type { ChatMessage } from '../llama/index.js';
import { parseBounded } from './request-body.js';

const roles = ['system', 'developer', 'user', 'assistant', 'tool'] as const;

/** What other servers and their clients write there, and no template reads. */
export const ignored: Field<unknown> = (value) => value;

export const partSpec = {
  type: string, text: optional(text), refusal: optional(text), annotations: ignored, cache_control: ignored,
};

/** A text, or the texts of parts, one behind the other; undefined: there is none. */
const contentField: Field<string | undefined> = (value, place) => {
  if (value === undefined || value === null) return undefined;
  if (typeof value === 'string') return value;
  if (!Array.isArray(value)) {
    throw createError(
      'KV_INVALID_OPTION',
      { reason: 'type', ...place, expected: 'a text, or an array of parts of text', received: value }
    );
  }
  return readArray(value, place, (part, index) => {
    const option = `${place.option}[${index}]`;
    const type = (part as { readonly type?: unknown } | null | undefined)?.type;
    if (typeof type === 'string' && type !== 'text' && type !== 'refusal') {
      throw createError('KV_NOT_SUPPORTED', { option: `${option}.type`, problem: 'messages have text only', hint: "Send parts of type 'text'." });
    }
    const read = readOptions(place.owner, part, partSpec, option);
    return text(
      type === 'refusal' ? read.refusal : read.text,
      { ...place, option: `${option}.${type === 'refusal' ? 'refusal' : 'text'}` },
    );
  }).join('');
};

/** An argument list as the model wrote it: an object, so that templates write it as JSON once. */
const argumentsField: Field<unknown> = (value, place) => {
  if (typeof value === 'object' && value !== null) return value;
  const given = value === undefined || value === null ? '' : text(value, place);
  try {
    const parsed = parseBounded(given);
    return typeof parsed === 'object' && parsed !== null ? parsed : given;
  } catch (error) {
    if (error instanceof SyntaxError) return given; // the model's own mistake, which it may see
    throw error;
  }
};

const functionSpec = { name: string, arguments: argumentsField };
const callSpec = {
  id: optional(string), type: optional(oneOf(['function'])), index: ignored,
  function: (value: unknown, place: FieldPlace) => readOptions(place.owner, value, functionSpec, place.option),
};

const callsField: Field<readonly object[] | undefined> = (value, place) => {
  if (value === undefined || value === null) return undefined;
  const calls = readArray(value, place, (call, index) => {
    const { id, function: called } = readOptions(place.owner, call, callSpec, `${place.option}[${index}]`);
    return { ...id === undefined ? {} : { id }, type: 'function', function: called };
  });
  return calls.length === 0 ? undefined : calls;
};

function nothing(problem: string, hint: string): Field<undefined> {
  return (value, { option }) => {
    if (value === undefined || value === null) return undefined;
    throw createError('KV_NOT_SUPPORTED', { option, problem, hint });
  };
}

const nullableText: Field<string | undefined> = (value, place) =>
  (value === undefined || value === null ? undefined : text(value, place));

export const messageSpec = {
  role: oneOf(roles), content: contentField, name: nullableText, reasoning_content: nullableText,
  tool_calls: callsField, tool_call_id: nullableText,
  function_call: nothing('functions are called by `tool_calls`', 'Send `tool_calls`.'),
  audio: nothing('messages have text only', 'Leave it out.'),
  refusal: ignored, annotations: ignored, cache_control: ignored, reasoning: ignored, reasoning_details: ignored,
};

/** Messages, at least one. `developer` is what newer clients call `system`. */
export const messagesField: Field<readonly ChatMessage[]> = (value, place) => {
  const messages = readArray(value, place, (message, index) => messageOf(message, place, index));
  if (messages.length > 0) return messages;
  throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected: 'an array of at least one message', received: value });
};

/** Only what it has: templates ask whether a member is there. */
function messageOf(message: unknown, place: FieldPlace, index: number): ChatMessage {
  if (isPlain(message)) return { role: message.role, content: message.content }; // a history may have tens of thousands
  const option = `${place.option}[${index}]`;
  const {
    role, content, name, reasoning_content: reasoning, tool_calls: calls, tool_call_id: callId,
  } = readOptions(place.owner, message, messageSpec, option);
  if (content === undefined && role !== 'assistant' && role !== 'tool') {
    throw createError(
      'KV_INVALID_OPTION',
      { reason: 'type', ...place, option: `${option}.content`, expected: 'a text', received: undefined },
    );
  }
  const more = Object.entries({
    name, reasoning_content: reasoning, tool_calls: calls, tool_call_id: callId,
  }).filter(([, each]) => each !== undefined);
  return { role: role === 'developer' ? 'system' : role, content: content ?? '', ...Object.fromEntries(more) };
}

/** Whether it is a message of nothing but a text, and none whose role is renamed. */
function isPlain(message: unknown): message is { readonly role: string; readonly content: string } {
  if (!isOptionsObject(message) || Object.keys(message).length !== 2) return false;
  const { role, content } = message as { readonly role?: unknown; readonly content?: unknown };
  return typeof content === 'string' && role !== 'developer' && (roles as readonly unknown[]).includes(role);
}
