// promptSource: where most of a request's prompt came from, in one word, for times by source.

import type { Promotion } from '../cache/promotion.js';

/** What is known of a request's prompt once it has a slot. */
export interface PromptParts {
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly promotion: Promotion | undefined;
}

/** `computed`, `device`, or the name of a tier: whatever most of the prompt's tokens came from. */
export function promptSource({ promptTokens, cachedTokens, promotion }: PromptParts): string {
  let source = 'computed';
  let most = promptTokens - cachedTokens;
  const take = (name: string, tokens: number): void => {
    if (tokens < most) return;
    source = name;
    most = tokens;
  };
  take('device', Math.max(0, cachedTokens - (promotion?.promotedTokens ?? 0)));
  for (const [tier, tokens] of Object.entries(promotion?.promotedFrom ?? {})) take(tier, Math.min(tokens, cachedTokens));
  return source;
}
