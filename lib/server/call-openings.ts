// CallOpenings: how answers begin that must call a function (`tool_choice`): the tokens of a call in the model's own
// form, up to its arguments, which the model then writes itself. The form is asked of the chat template once.

import { createError } from '../base/errors.js';
import type { Sampler } from '../index.js';
import { readPromptTokens } from './prompt-tokens.js';
import type { ServedTokenizer } from './server-options.js';

/** How a model writes a call. */
type CallForm = 'tagged' | 'json';

const question = [{ role: 'user', content: 'a' }];
const someTool = {
  type: 'function', function: { name: 'a', description: 'a', parameters: { type: 'object', properties: {} } },
};

export class CallOpenings {
  readonly #tokenizer: ServedTokenizer;
  #form: CallForm | undefined;

  constructor(tokenizer: ServedTokenizer) {
    this.#tokenizer = tokenizer;
  }

  /**
   * [function, token] for functions of these names. `isThinking`: the prompt has begun what the model thinks, which
   * ends first. Rejects with KV_NOT_SUPPORTED where the chat template tells the model of no tools.
   */
  async of(names: Iterable<string>, isThinking: boolean): Promise<readonly (readonly number[])[]> {
    const form = this.#form ??= await this.#askForm();
    const { length: frameTokens } = await this.#encode('', 'text');
    const head = `${isThinking ? '</think>\n\n' : ''}${form === 'tagged' ? '<tool_call>' : ''}`;
    const headTokens = head === '' ? [] : (await this.#encode(head, 'parse')).slice(frameTokens);
    const openings: (readonly number[])[] = [];
    for (const name of names) {
      const quoted = JSON.stringify(name);
      const text = form === 'tagged' ? `\n{"name": ${quoted}, "arguments":` : `{"name": ${quoted}, "parameters":`;
      openings.push([...headTokens, ...(await this.#encode(text, 'text')).slice(frameTokens)]);
    }
    return openings;
  }

  async #askForm(): Promise<CallForm> {
    const [told, untold] = [await this.#render({ tools: [someTool], tool_choice: 'auto' }), await this.#render({})];
    if (told !== untold) return told.includes('<tool_call>') ? 'tagged' : 'json';
    throw createError('KV_NOT_SUPPORTED', {
      option: 'tool_choice', problem: "the model's chat template tells it of no tools",
      hint: "Leave it out, or send 'auto' or 'none'; or serve a model that calls functions.",
    });
  }

  async #render(values: Readonly<Record<string, unknown>>): Promise<string> {
    const tokens = await readPromptTokens(this.#tokenizer.encodeChat(question, values, {}), 'encodeChat');
    const pieces = this.#tokenizer.pieces();
    return tokens.map((token) => pieces.push(token)).join('') + pieces.end();
  }

  #encode(text: string, specialTokens: 'text' | 'parse'): Promise<readonly number[]> {
    return readPromptTokens(this.#tokenizer.encode(text, { specialTokens }), 'encode');
  }
}

/** A sampler whose answers begin with one of these: it chooses among them where they part, and is free behind them. */
export function beginningWith(sampler: Sampler, openings: readonly (readonly number[])[]): Sampler {
  return (logits, index, text) => {
    const said = text!.tokens.subarray(text!.promptTokens, text!.length);
    const left = openings.filter((each) => each.length > index && said.every((token, at) => token === each[at]));
    if (left.length === 0) return sampler(logits, index, text);
    const allowed = new Float32Array(logits.length).fill(-Infinity);
    for (const { [index]: token } of left) allowed[token!] = logits[token!]!;
    return sampler(allowed, index, text);
  };
}
