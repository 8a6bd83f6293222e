// ToolCalls: the calls of functions in an answer, in the forms in which models write them: Hermes and Qwen
// `<tool_call>{…}</tool_call>`, Llama 3.1 and Mistral as JSON that is the whole answer. What is no call of that form
// stays text.

import { randomInt } from 'node:crypto';

import { firstValue, jsonMembers, jsonString, jsonValues } from './json-values.js';

/** A call as OpenAI's API writes it. */
export interface ToolCall {
  readonly id: string;
  readonly type: 'function';
  readonly function: { readonly name: string; /** JSON, as the model wrote it. */ readonly arguments: string };
}

/** The call between the tags of Hermes and Qwen; undefined: there is none. */
export function taggedCall(text: string): ToolCall | undefined {
  return callOf(text.trim());
}

/** The calls that are all of an answer, each of a function in `names`; undefined: the answer is a text. */
export function wholeCalls(text: string, names: ReadonlySet<string>): readonly ToolCall[] | undefined {
  const objects = jsonValues(text)?.flatMap(
    (value) => (value.startsWith('[') ? jsonValues(value.slice(1, -1)) ?? [''] : [value]),
  );
  const calls = objects?.map((object) => callOf(object));
  const areCalls = calls?.every((call): call is ToolCall => call !== undefined && names.has(call.function.name)) === true;
  return areCalls ? calls : undefined;
}

/**
 * The call that an answer was begun with, whatever the model made of its arguments: these may be cut, or no JSON.
 * Undefined: the answer ended before them.
 */
export function begunCall(text: string, names: ReadonlySet<string>): ToolCall | undefined {
  for (const name of names) {
    for (const word of ['arguments', 'parameters']) {
      const opening = `{"name": ${JSON.stringify(name)}, "${word}":`;
      const begun = text.trimStart();
      if (begun.startsWith(opening)) return newCall(name, firstValue(begun.slice(opening.length)));
    }
  }
  return undefined;
}

function callOf(object: string): ToolCall | undefined {
  const members = jsonMembers(object);
  const name = jsonString(members?.get('name'));
  if (members === undefined || name === undefined || name === '') return undefined;
  const given = members.get('arguments') ?? members.get('parameters') ?? 'null';
  return newCall(name, given === 'null' ? '{}' : jsonString(given) ?? given);
}

function newCall(name: string, given: string): ToolCall {
  return { id: newId(), type: 'function', function: { name, arguments: given } };
}

const letters = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789';

/** Nine letters and digits: Mistral's template takes no other id. */
function newId(): string {
  return Array.from({ length: 9 }, () => letters[randomInt(letters.length)]!).join('');
}
