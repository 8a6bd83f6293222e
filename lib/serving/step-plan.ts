// Step plan: how many tokens each sequence computes in the next step. Pure. A token for every one that decodes, so that
// nobody's answer stalls behind somebody's prompt; what the budget leaves goes to prompts, in the order given.

/** A sequence as the plan sees it. */
export interface StepMember {
  /** Tokens of its prompt to compute before it decodes; 0: it decodes. */
  readonly remainingPrefillTokens: number;
  /** The plan's answer: tokens that it computes in the next step; 0: it waits. */
  passTokens: number;
}

/** Sets `passTokens` of every member; returns the prefill tokens among them, at most `prefillTokensPerStep`. */
export function planStep(members: readonly StepMember[], prefillTokensPerStep: number): number {
  let prefillTokens = 0;
  for (const member of members) {
    const { remainingPrefillTokens } = member;
    if (remainingPrefillTokens === 0) {
      member.passTokens = 1;
      continue;
    }
    member.passTokens = Math.min(remainingPrefillTokens, prefillTokensPerStep - prefillTokens);
    prefillTokens += member.passTokens;
  }
  return prefillTokens;
}
