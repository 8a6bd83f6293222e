// The tools of a chat request: functions that the model may call. They go to the chat template, which says them to the
// model in its own words; a call that must come is begun for it (call-openings.ts).

import { createError } from '../base/errors.js';
import { isOptionsObject, readArray, string, type Field } from '../base/options.js';

/** A function as the client describes it; templates read what they want of it. */
export interface Tool {
  readonly type: 'function';
  readonly function: { readonly name: string; readonly [more: string]: unknown };
}

export type ToolChoice = 'none' | 'auto' | 'required' | {
  readonly type: 'function'; readonly function: { readonly name: string },
};

const mostTools = 512;

export const toolsField: Field<readonly Tool[]> = (value, place) => {
  if (value === undefined) return [];
  const tools = readArray(value, place, (tool, index) => {
    const option = `${place.option}[${index}]`;
    const {
      type, function: called,
    } = (isOptionsObject(tool) ? tool : {}) as { readonly type?: unknown; readonly function?: unknown };
    if (typeof type === 'string' && type !== 'function') {
      throw createError('KV_NOT_SUPPORTED', {
        option: `${option}.type`, problem: 'the server has no tools of its own', hint: "Send tools of type 'function'."
      });
    }
    if (type === undefined || !isOptionsObject(called)) {
      throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, option, expected: "a tool: `{ type: 'function', function: { name } }`", received: tool });
    }
    string((called as { readonly name?: unknown }).name, { ...place, option: `${option}.function.name` });
    return tool as Tool;
  });
  if (tools.length <= mostTools) return tools;
  throw createError(
    'KV_INVALID_OPTION', { reason: 'range', ...place, expected: `at most ${mostTools} tools`, received: tools.length },
  );
};

export const toolChoiceField: Field<ToolChoice> = (value, place) => {
  if (value === undefined) return 'auto';
  if (value === 'none' || value === 'auto' || value === 'required') return value;
  const name = (value as { readonly function?: { readonly name?: unknown } }).function?.name;
  if (typeof name === 'string' && name !== '') return { type: 'function', function: { name } };
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: "'none', 'auto', 'required' or `{ type: 'function', function: { name } }`",
    received: value,
  });
};

/**
 * The tools that the model is told of: none, all, or the one that is to be called. Throws KV_INVALID_OPTION where that
 * is not among them, or where there is none to call.
 */
export function offeredTools(tools: readonly Tool[], choice: ToolChoice, owner: string): readonly Tool[] {
  if (choice === 'none') return [];
  if (choice === 'required' && tools.length === 0) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option: 'tool_choice', expected: "'none' or 'auto' without `tools`", received: choice,
    });
  }
  if (typeof choice === 'string') return tools;
  const { name } = choice.function;
  const chosen = tools.filter(({ function: called }) => called.name === name);
  if (chosen.length > 0) return chosen;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner, option: 'tool_choice.function.name', expected: 'the name of one of `tools`', received: name
  });
}
