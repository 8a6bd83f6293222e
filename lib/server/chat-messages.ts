// The messages of a chat request: roles and plain text. Parts that are no text are refused by name.

import { createError } from '../base/errors.js';
import { oneOf, readArray, readOptions, string, type Field, type FieldPlace } from '../base/options.js';
import type { ChatMessage } from '../llama/index.js';

const roles = ['system', 'developer', 'user', 'assistant', 'tool'] as const;

/** A text, which may be empty. */
const anyText: Field<string> = (value, place) => {
  if (typeof value === 'string') return value;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'a text', received: value });
};

const partSpec = { type: string, text: anyText };

/** A text, or the texts of parts of type `text`, one behind the other. */
const contentField: Field<string> = (value, place) => {
  if (!Array.isArray(value)) return anyText(value, place);
  return readArray(value, place, (part, index) => {
    const option = `${place.option}[${index}]`;
    const type = (part as { readonly type?: unknown } | null | undefined)?.type;
    if (typeof type === 'string' && type !== 'text') {
      throw createError('KV_NOT_SUPPORTED', { option: `${option}.type`, problem: 'messages have text only', hint: "Send parts of type 'text'." });
    }
    return readOptions(place.owner, part, partSpec, option).text;
  }).join('');
};

const ignoredName: Field<unknown> = (value) => value;

const noCalls: Field<undefined> = (value, { option }) => {
  if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) return undefined;
  throw createError('KV_NOT_SUPPORTED', { option, problem: 'the server calls no functions', hint: 'Leave it out.' });
};

const messageSpec = {
  role: oneOf(roles), content: contentField, name: ignoredName, tool_calls: noCalls, tool_call_id: noCalls, function_call: noCalls, refusal: noCalls,
};

/** Messages, at least one. `developer` is what newer clients call `system`. */
export const messagesField: Field<readonly ChatMessage[]> = (value, place) => {
  const messages = readArray(value, place, (message, index) => messageOf(message, place, index));
  if (messages.length > 0) return messages;
  throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected: 'an array of at least one message', received: value });
};

function messageOf(message: unknown, place: FieldPlace, index: number): ChatMessage {
  const { role, content } = readOptions(place.owner, message, messageSpec, `${place.option}[${index}]`);
  return { role: role === 'developer' ? 'system' : role, content };
}
