// WatchedRequests: requests that remember every row of logits a scheduler reads for them, wherever it comes from: a pass of the
// engine, a pass that was run again, logits that were kept at the end of a prompt. The check compares each with computing the
// request's text so far without a cache, and the token chosen with what is chosen from that.

import type { ExecutionContext } from 'ava';

import { greedy, randomSampler, type GenerationRequest, type GenerationResult, type Sampler } from 'virtual-kv';

import { difference, isLikeliest, tolerance } from './logits.js';
import type { PlainAnswers } from './plain-answers.js';

interface Row {
  readonly text: readonly number[];
  readonly logits: Float32Array;
  readonly index: number;
  readonly token: number;
  readonly choice: Choice;
}

/** How a request chooses its tokens: the likeliest, or at random by a seed. */
export type Choice = { readonly temperature: number; readonly seed: number } | 'greedy';

export type WatchedRequest = GenerationRequest & { readonly tokens: readonly number[]; readonly sampler: Sampler };

export class WatchedRequests {
  readonly #rows: Row[] = [];
  readonly #answers = new Map<WatchedRequest, number[]>();

  get rows(): number {
    return this.#rows.length;
  }

  /** The request with a sampler that chooses so, and that we listen in to. */
  watch(request: GenerationRequest & { readonly tokens: readonly number[] }, choice: Choice): WatchedRequest {
    const answer: number[] = [];
    const choose = choice === 'greedy' ? greedy : randomSampler(choice);
    const sampler: Sampler = (logits, index) => {
      const token = choose(logits, index);
      this.#rows.push({ text: [...request.tokens, ...answer.slice(0, index)], logits: logits.slice(), index, token, choice });
      answer.length = Math.min(index, answer.length); // a pass whose other half failed is run again
      answer[index] = token;
      return token;
    };
    const watched = { ...request, sampler };
    this.#answers.set(watched, answer);
    return watched;
  }

  /** A result has the tokens that were chosen, each from a row that was read, and as many as were asked for. */
  assertResult(t: ExecutionContext, request: WatchedRequest, { tokens, finishReason, stopToken }: GenerationResult): void {
    const chosen = this.#answers.get(request)!;
    const length = finishReason === 'length' ? request.maxNewTokens : tokens.length + 1;
    t.deepEqual(chosen, stopToken === undefined ? [...tokens] : [...tokens, stopToken]);
    t.true(chosen.length === length && Object.keys(chosen).length === length); // no holes
  }

  /** Compares all rows; returns how many tokens were as likely as another within rounding, and so may differ. */
  check(t: ExecutionContext, plain: PlainAnswers, where: string): number {
    let ties = 0;
    for (const { text, logits, index, token, choice } of this.#rows.sort((a, b) => b.text.length - a.text.length)) {
      const expected = plain.behind(text);
      const apart = difference(logits, expected);
      if (!(apart <= tolerance)) t.fail(`${where}: behind ${text.length} tokens (${index} generated) off by ${apart} of the largest logit`);
      const choose = choice === 'greedy' ? greedy : randomSampler(choice);
      if (choose(Float32Array.from(expected), index) === token) continue;
      ties += 1;
      const isTie = choice === 'greedy' ? isLikeliest(token, expected) : isAtEdge(token, choose, index, expected, choice.temperature);
      if (!isTie) t.fail(`${where}: behind ${text.length} tokens (${index} generated) it chose ${token}, which is no tie`);
    }
    return ties;
  }
}

/** Whether the number that was drawn lies in the token's part of [0, 1), or beside it by no more than rounding can explain. */
function isAtEdge(token: number, choose: Sampler, index: number, expected: Float64Array, temperature: number): boolean {
  const steps = 2 ** 16;
  const drawn = choose(new Float32Array(steps), index) / steps; // all alike: the token says where the number is
  const weights = Array.from(expected, (logit) => Math.exp(logit / temperature));
  const total = weights.reduce((sum, weight) => sum + weight);
  const below = weights.slice(0, token).reduce((sum, weight) => sum + weight, 0) / total;
  const edge = 2 / steps;
  return drawn > below - edge && drawn < below + weights[token]! / total + edge;
}
