// RequestsPicture: the open requests of a scheduler at one moment, for pages and terminals that watch it. Numbers only:
// neither text nor tokens, tenants or salts. Made only when it is asked for; of those that wait only the first are in
// it.

import type { Generation } from './generation.js';

/** One request that has not ended. */
export interface PictureRequest {
  /** Its number, in the order of submission, from 1 on. */
  readonly number: number;
  /** Its slot; -1: it waits. */
  readonly slot: number;
  readonly promptTokens: number;
  /** Of the prompt, found in the cache. */
  readonly cachedTokens: number;
  /** With K and V: of the prompt and the answer. */
  readonly computedTokens: number;
  readonly generatedTokens: number;
  readonly maxNewTokens: number;
  /** Since its submission. */
  readonly ageMs: number;
  /** From its submission to its first slot; null: it has had none. */
  readonly waitMs: number | null;
  /** From its submission to its first token; null: it has none. */
  readonly firstTokenMs: number | null;
  readonly preemptions: number;
  readonly urgency: number;
}

/** What `OnlineScheduler.picture` returns. */
export interface RequestsPicture {
  readonly running: readonly PictureRequest[];
  /** At most `maxWaitingShown`, oldest first. */
  readonly waiting: readonly PictureRequest[];
}

/** Requests without a slot in a picture, at most. */
export const maxWaitingShown = 64;

/** @param open In the order of submission. */
export function pictureOfRequests(open: Iterable<Generation>, nowMs: number): RequestsPicture {
  const running: PictureRequest[] = [];
  const waiting: PictureRequest[] = [];
  for (const generation of open) {
    if (generation.sequence !== undefined) running.push(pictureOf(generation, nowMs));
    else if (waiting.length < maxWaitingShown) waiting.push(pictureOf(generation, nowMs));
  }
  return { running, waiting };
}

function pictureOf(generation: Generation, nowMs: number): PictureRequest {
  const {
    arrival, sequence, promptTokens, length, generatedTokens, request, submittedMs, admission, firstTokenAtMs,
    preemptions, urgency,
  } = generation;
  const rounded = (ms: number): number => Math.round(10 * ms) / 10;
  return {
    number: arrival, slot: sequence?.slot ?? -1, promptTokens, cachedTokens: admission?.cachedTokens ?? 0,
    computedTokens: length, generatedTokens,
    maxNewTokens: request.maxNewTokens, ageMs: rounded(nowMs - submittedMs),
    waitMs: admission === undefined ? null : rounded(admission.waitMs),
    firstTokenMs: firstTokenAtMs < 0 ? null : rounded(firstTokenAtMs - submittedMs), preemptions, urgency,
  };
}
