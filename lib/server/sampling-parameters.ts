// SamplingParameters: how a request says that its tokens are chosen, by the names of OpenAI's API and of vLLM's, and the sampler that
// does so. The order in which they take effect is `randomSampler`'s: bias, penalties, temperature, `top_k`, `top_p`, `min_p`.

import { randomInt } from 'node:crypto';

import { createError } from '../base/errors.js';
import { integer, isOptionsObject, number, optional, withDefault, type Field, type OptionsOf } from '../base/options.js';
import { greedy, randomSampler, type Sampler } from '../index.js';

/** Of a request. The bias comes with every step of the answer, so it is bounded. */
const mostBiasedTokens = 1_024;

const penalty = number(-2, 2);
const biasNumber = number(-100, 100);
const maxToken = 2 ** 31 - 1;

/** `{ "token id": bias }`, as JSON has it. */
const biasField: Field<ReadonlyMap<number, number>> = (value, place) => {
  const biases = new Map<number, number>();
  if (value === undefined) return biases;
  if (!isOptionsObject(value) || Array.isArray(value)) {
    throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'an object from token ids to numbers', received: value });
  }
  const entries = Object.entries(value);
  if (entries.length > mostBiasedTokens) {
    throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected: `at most ${mostBiasedTokens} tokens`, received: entries.length });
  }
  for (const [name, bias] of entries) {
    const token = /^(0|[1-9]\d{0,9})$/.test(name) ? Number(name) : NaN;
    if (!(token <= maxToken)) {
      throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected: 'an object whose names are token ids, as "1234"', received: name });
    }
    biases.set(token, biasNumber(bias, { ...place, option: `${place.option}.${name}` }));
  }
  return biases;
};

/** Fields of a request's body. */
export const samplingSpec = {
  temperature: withDefault(number(0, 2), 1),
  top_p: withDefault(number(0, 1), 1),
  top_k: optional(integer({ min: -1 })),
  min_p: withDefault(number(0, 1), 0),
  seed: optional(integer({ min: -(2 ** 53 - 1) })),
  presence_penalty: withDefault(penalty, 0),
  frequency_penalty: withDefault(penalty, 0),
  repetition_penalty: withDefault(number(1e-6, 1e9), 1),
  logit_bias: biasField,
};

export type SamplingParameters = OptionsOf<typeof samplingSpec>;

/** Throws KV_INVALID_OPTION where the bias is for a token that the model does not have. */
export function checkBiasedTokens({ logit_bias: biases }: SamplingParameters, vocabularyTokens: number): void {
  for (const token of biases.keys()) {
    if (token < vocabularyTokens) continue;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'the server', option: 'logit_bias', expected: `tokens from 0 to ${vocabularyTokens - 1}, the model's`, received: token,
    });
  }
}

/** A sampler that chooses none of these tokens before an answer has so many. */
export function withoutEarly(sampler: Sampler, tokens: readonly number[], minTokens: number): Sampler {
  return (logits, index, text) => {
    if (index >= minTokens) return sampler(logits, index, text);
    const allowed = logits.slice();
    for (const token of tokens) allowed[token] = -Infinity;
    return sampler(allowed, index, text);
  };
}

/** The sampler of the answers from `choice` on, each of which draws other numbers. */
export function samplerOf(parameters: SamplingParameters, choice: number): Sampler {
  const { temperature, top_p: topP, top_k: topK = 0, min_p: minP, seed = randomInt(2 ** 47), logit_bias: logitBias } = parameters;
  const { presence_penalty: presencePenalty, frequency_penalty: frequencyPenalty, repetition_penalty: repetitionPenalty } = parameters;
  const changes = { presencePenalty, frequencyPenalty, repetitionPenalty, logitBias };
  if (temperature < 1e-6) {
    const isPlain = logitBias.size === 0 && presencePenalty === 0 && frequencyPenalty === 0 && repetitionPenalty === 1;
    return isPlain ? greedy : randomSampler({ ...changes, topK: 1, seed: 0 });
  }
  const from = seed < 0 ? 2 ** 53 + seed : seed;
  return randomSampler({ ...changes, temperature, topP, topK: topK < 1 ? undefined : topK, minP, seed: (from + choice) % 2 ** 53 });
}
