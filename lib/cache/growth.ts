// Growth policies: how many tokens a sequence should have memory for, beyond what it must. Pure; called once per sequence
// and commit with plain numbers, so that a step allocates nothing. The mapper maps what is wished in the background, as far
// as free pages reach; it takes none from anybody.

import { checkInteger } from '../base/options.js';

/**
 * `lengthTokens`: tokens of the sequence that are valid. `promisedTokens`: tokens it was promised memory for at `acquire`
 * (its whole prompt; 0 without). Returns the tokens that should be mapped soon; less than `lengthTokens` means nothing, Infinity as
 * many as a slot has. What is no number is refused (KV_INVALID_OPTION) once the commit is done.
 */
export type GrowthPolicy = (lengthTokens: number, promisedTokens: number) => number;

/** Maps nothing ahead: rows appear in `prepare`, when they are needed. The fewest pages, and the longest steps. */
export function onDemand(): GrowthPolicy {
  return (lengthTokens) => lengthTokens;
}

/**
 * Maps ahead in the background: the whole promised prompt, whose pages are set aside for it anyway, and then the row that
 * the next `tokens` tokens will touch. Default 16: enough steps for the mapper to be done before the row is needed.
 */
export function ahead(tokens = 16): GrowthPolicy {
  checkInteger('ahead', 'tokens', tokens, 1);
  return (lengthTokens, promisedTokens) => Math.max(lengthTokens + tokens, promisedTokens);
}
