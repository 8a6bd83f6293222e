// How likely the tokens of a prompt are, each behind those before it (`echo` with `logprobs`): parts of the prompt are
// generated once more, side by side, by samplers that choose what it says. Its start is computed once and cached, so
// any engine that answers with logits can, in as many decoding steps as a part has tokens.

import type { GenerationRequest, OnlineScheduler, TokenLogProbability, TokenStream } from '../index.js';

/** A request with the prompt's tokens as an array. */
export type ServedRequest = GenerationRequest & { readonly tokens: readonly number[] };

/** Parts at most, and their tokens at least: a part takes a slot, and a row of memory of its own. */
const mostParts = 8;
const leastTokens = 8;

/**
 * [token of the prompt]; NaN of the first, before which nothing stands. Rejects as a request does, and with
 * KV_QUEUE_FULL.
 */
export async function scorePrompt(
  scheduler: OnlineScheduler, request: ServedRequest,
): Promise<readonly TokenLogProbability[]> {
  const { tokens } = request;
  const scored = tokens.length - 1;
  const room = Math.max(1, scheduler.maxWaiting - scheduler.waitingRequests);
  const parts = Math.min(mostParts, room, Math.ceil(scored / leastTokens));
  const start = (part: number): number => 1 + Math.floor(scored * part / parts);
  const streams: TokenStream[] = [];
  try {
    for (let part = parts - 1; part >= 0; part -= 1) { // the longest start first: the others wait for it
      streams.unshift(scorePart(scheduler, request, start(part), start(part + 1)));
    }
    const results = await Promise.all(streams.map(({ result }) => result));
    const first: TokenLogProbability = { token: tokens[0]!, logProbability: Number.NaN, best: [] };
    return [first, ...results.flatMap(({ logProbabilities }) => logProbabilities!)];
  } finally {
    for (const stream of streams) stream.cancel();
  }
}

/** Tokens from `from` to before `to`. */
function scorePart(
  scheduler: OnlineScheduler, { tokens, logProbabilities, tenant, salt, urgency, signal, deadlineMs }: ServedRequest,
  from: number, to: number,
): TokenStream {
  return scheduler.submit({
    tokens: tokens.slice(0, from), maxNewTokens: to - from, logProbabilities,
    sampler: (_, index) => tokens[from + index]!,
    tenant, salt, urgency, signal, deadlineMs,
  });
}
