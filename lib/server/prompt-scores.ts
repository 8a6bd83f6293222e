// How likely the tokens of a prompt are, each behind those before it (`echo` with `logprobs`): the prompt is generated
// once more from its first token on, by a sampler that always chooses what it says. So any engine that answers with
// logits can, at the cost of one decoding step for each token.

import type { GenerationRequest, OnlineScheduler, TokenLogProbability } from '../index.js';

/** A request with the prompt's tokens as an array. */
export type ServedRequest = GenerationRequest & { readonly tokens: readonly number[] };

/** [token of the prompt]; NaN of the first, before which nothing stands. Rejects as the request does. */
export async function scorePrompt(
  scheduler: OnlineScheduler, request: ServedRequest,
): Promise<readonly TokenLogProbability[]> {
  const { tokens, logProbabilities, tenant, salt, urgency, signal, deadlineMs } = request;
  const first: TokenLogProbability = { token: tokens[0]!, logProbability: Number.NaN, best: [] };
  if (tokens.length === 1) return [first];
  const { result } = scheduler.submit({
    tokens: tokens.slice(0, 1), maxNewTokens: tokens.length - 1, logProbabilities,
    sampler: (_, index) => tokens[index + 1]!,
    caching: 'off', tenant, salt, urgency, signal, deadlineMs,
  });
  return [first, ...(await result).logProbabilities!];
}
