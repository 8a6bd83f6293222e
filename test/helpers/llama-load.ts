// LlamaLoad: a random small model, and random requests to it whose prompts share their beginnings in every way there is: the whole
// prompt, cut in the middle of a row, cut and gone on with differently, or not at all.

import { layoutKinds, type LayoutKind, type PromptItem } from 'virtual-kv';

import { LlamaModel } from '#internal/llama/model.js';
import type { Random } from '#internal/base/random.js';
import { layoutOf, randomText, shapeOf } from './llama-shapes.js';
import { randomLlama, removeFolder, writeLlama, type LlamaSizes } from './made-llama.js';
import { PlainAnswers } from './plain-answers.js';
import type { Choice } from './watched-requests.js';

export const maxTokens = 128;

export interface LlamaLoadOptions {
  readonly random: Random;
  readonly layers?: readonly number[];
  readonly threads?: number;
}

/** A request as data: schedulers are given watched copies of it. */
export interface LoadedRequest {
  readonly tokens: readonly number[];
  readonly items: readonly PromptItem[];
  readonly maxNewTokens: number;
  readonly choice: Choice;
  readonly urgency: number;
  readonly tenant: string;
  readonly caching: 'read-write' | 'read' | 'write' | 'off';
}

export class LlamaLoad {
  readonly layout: LayoutKind;
  readonly shape: LlamaSizes;
  readonly model: LlamaModel;
  readonly plain: PlainAnswers;
  readonly #random: Random;
  readonly #prompts: (readonly number[])[] = [];

  constructor({ random, layers = [1, 2, 3], threads = 1 }: LlamaLoadOptions) {
    this.#random = random;
    this.layout = this.pick(layoutKinds);
    this.shape = shapeOf(this.layout, this.pick(layers), this.pick([1, 2, 4]), this.pick([1, 2, 3]), this.pick([20, 32, 48]));
    const made = randomLlama(random, this.shape);
    const folder = writeLlama(made);
    this.model = new LlamaModel(folder, { threads });
    removeFolder(folder);
    this.plain = new PlainAnswers(made);
  }

  pick<T>(choices: readonly T[]): T {
    return choices[this.#random.integer(choices.length)]!;
  }

  /** A budget in which a text of `maxTokens` fits, and so many rows more. */
  budgetBytes(moreRows: number): number {
    const { maxRows, rowBytes } = layoutOf(this.layout, this.shape, maxTokens);
    return (maxRows + moreRows) * rowBytes;
  }

  /** The next request. */
  request(longestAnswer = 16): LoadedRequest {
    const random = this.#random;
    const tokens = this.#prompt();
    this.#prompts.push(tokens);
    const choice = random.chance(0.5) ? 'greedy' : { temperature: 0.6 + random.next(), seed: random.integer(2 ** 31) };
    return {
      tokens, choice, items: itemsOf(tokens), maxNewTokens: 1 + random.integer(longestAnswer), urgency: random.chance(0.2) ? random.integer(3) : 0,
      tenant: random.chance(0.1) ? 'other' : '', caching: random.chance(0.8) ? 'read-write' : this.pick(['read', 'write', 'off']),
    };
  }

  /** Known by its beginning or not. */
  #prompt(): number[] {
    const random = this.#random;
    const known = this.#prompts.length > 0 && random.chance(0.8) ? this.#prompts.at(-1 - random.integer(Math.min(12, this.#prompts.length)))! : [];
    if (known.length > 0 && random.chance(0.35)) return [...known];
    const kept = known.slice(0, 1 + random.integer(known.length)).slice(0, 70);
    return [...kept, ...randomText(random, (kept.length === 0 ? 20 : 1) + random.integer(30))];
  }
}

/** In some texts the content of a few tokens in the middle of a row goes by a name. */
function itemsOf(tokens: readonly number[]): PromptItem[] {
  const [at, length] = [11, 6];
  if (tokens.length < at + length || tokens[0]! % 4 > 0) return [];
  return [{ at, length, kind: 'item', hash: tokens.slice(at, at + length).join() }];
}
