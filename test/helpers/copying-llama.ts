// CopyingLlama: a Llama whose weights are written down, not trained, and whose right answer is known: behind `start a b c … a` it
// says `b`, then `c`, and so on: it copies what followed the last token when that came before.
//
// The hidden state has the token's code, room for the code of the token before it, room for the answer's, and a 1. Layer 0
// looks one position back, by the fast rotary pairs, and notes that token's code. Layer 1 looks for the position whose noted
// code is the last token's, by the slow pairs, which hardly turn within a text, and brings the code that stands there. So an
// answer is right only if K and V of the whole text are: a wrong byte finds another token, or brings another code.

import type { Random } from '#internal/base/random.js';
import { makeLlama, type MadeLlama } from './made-llama.js';

export const vocabularyTokens = 100;
/** The first token of every text, and never again. */
export const startToken = 0;

const codeDims = 32;
const headDim = 64;
const [queryHeads, kvHeads] = [4, 2];
const hidden = 3 * codeDims + 32;
const [noted, answered, one] = [codeDims, 2 * codeDims, 3 * codeDims];
const ropeTheta = 1e8;
const fastPairs = 12;
const slowPairs = 16;
const half = headDim / 2;

/** What the norm divides by when `codes` codes and the 1 are there. */
const sizeWith = (codes: number): number => Math.sqrt((codes * codeDims + 1) / hidden);

/** Codes of ±1, no two of them alike: their product is at most half of a code's with itself. */
function makeCodes(random: Random): number[][] {
  const codes: number[][] = [];
  while (codes.length < vocabularyTokens) {
    const code = Array.from({ length: codeDims }, () => (random.chance(0.5) ? 1 : -1));
    if (codes.every((other) => Math.abs(product(code, other)) <= codeDims / 2)) codes.push(code);
  }
  return codes;
}

function product(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

export interface CopyingLlama {
  readonly made: MadeLlama;
  /** The logits when `token` is the answer. */
  logitsOf(token: number): number[];
}

export function copyingLlama(random: Random): CopyingLlama {
  const codes = makeCodes(random);
  /** The weight from hidden element `input` to element `i` of every head of a product. */
  const weightAt = (layer: number, part: string, i: number, input: number): number => {
    const [pair, isLow] = [i % half, i < half];
    const angle = ropeTheta ** (-2 * pair / headDim);
    if (layer === 0) {
      if (part === 'v_proj') return input === i % codeDims ? sizeWith(1) : 0;
      if (input !== one || pair >= fastPairs) return 0;
      if (part === 'q_proj') return isLow ? 400 * sizeWith(1) : 0;
      return (isLow ? Math.cos(angle) : Math.sin(angle)) * sizeWith(1); // one position on
    }
    if (part === 'v_proj') return input === i % codeDims ? sizeWith(2) : 0;
    const element = pair - (half - slowPairs) + (isLow ? 0 : slowPairs); // of a code
    if (pair < half - slowPairs) return 0;
    return input === element + (part === 'q_proj' ? 0 : noted) ? (part === 'q_proj' ? 25 : 1) * sizeWith(2) : 0;
  };
  const fill = (name: string, index: number): number => {
    const [row, input] = [Math.floor(index / hidden), index % hidden];
    if (name.includes('norm')) return 1;
    if (name.includes('mlp')) return 0;
    if (name.includes('embed')) return input < codeDims ? codes[row]![input]! : input === one ? 1 : 0;
    if (name === 'lm_head.weight') return codes[row]![input - answered] ?? 0;
    const [, layer, part] = /layers\.(\d)\.self_attn\.(\w+)/.exec(name)!;
    if (part !== 'o_proj') return weightAt(Number(layer), part!, row % headDim, input);
    const [output, i] = [Math.floor(index / (queryHeads * headDim)), index % headDim];
    // Each head brings the code twice: everybody's share of it.
    return output === i % codeDims + (layer === '0' ? noted : answered) ? 1 / (2 * queryHeads) : 0;
  };
  const made = makeLlama(
    { layers: 2, hidden, intermediate: 8, queryHeads, kvHeads, headDim, vocabularyTokens }, { rope_theta: ropeTheta, rms_norm_eps: 1e-9 }, fill,
  );
  return { made, logitsOf: (token) => codes.map((code) => product(code, codes[token]!) / sizeWith(3)) };
}
