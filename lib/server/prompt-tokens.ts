// The tokens of a prompt as the server's tokenizer gives them: read once, into an array of our own. What is no list of numbers is the
// server's fault and no client's. Whether the tokens are those of the model is checked by the scheduler.

import { createError } from '../base/errors.js';
import { elementsOf } from '../base/typed-arrays.js';

/** Tokens of one prompt: more than any model has a context for. */
const mostTokens = 2 ** 24;

const place = { owner: 'ModelServer', option: 'tokenizer' };

/** The tokens, or those of a promise. Rejects as that does, and with KV_INVALID_OPTION of the owner `ModelServer`. */
export async function readPromptTokens(given: unknown, method: 'encode' | 'encodeChat'): Promise<readonly number[]> {
  const answer: unknown = await given;
  const tokens = numbersOf(answer);
  if (tokens !== undefined) return tokens;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: `one whose \`${method}\` gives an array of token ids`, received: answer });
}

/** A copy; undefined for what is no list of numbers. */
function numbersOf(answer: unknown): readonly number[] | undefined {
  const list = elementsOf(answer);
  if (list === undefined || list.length > mostTokens) return undefined;
  const numbers: number[] = [];
  for (let at = 0; at < list.length; at += 1) {
    const number = list.elements[at];
    if (typeof number !== 'number') return undefined;
    numbers.push(number);
  }
  return numbers;
}
