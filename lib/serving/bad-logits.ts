// Tells over `diagnostics_channel` that an engine gave logits that are not numbers, and what became of the request: a
// sign of a device that fails.

import diagnostics = require('node:diagnostics_channel');

import type { Generation } from './generation.js';

/** On `virtual-kv:bad-logits`. */
export interface BadLogitsEvent {
  /** The `KvCache` that the request computes in. */
  readonly cache: object;
  /** Tokens of its prompt. */
  readonly promptTokens: number;
  /** Tokens of its answer so far. */
  readonly generatedTokens: number;
  /** Tokens of its text that it had found in the cache. */
  readonly foundTokens: number;
  /**
   * `failed`: it ends with KV_ENGINE_FAILED · `computed-again`: without what it had found · `recovered`: its logits are
   * numbers then, and what it had found is dropped.
   */
  readonly outcome: 'failed' | 'computed-again' | 'recovered';
}

const channel = diagnostics.channel('virtual-kv:bad-logits');

export function publishBadLogits({
  cache, generation, outcome,
}: Pick<BadLogitsEvent, 'cache' | 'outcome'> & { readonly generation: Generation }): void {
  const { promptTokens, generatedTokens, foundTokens, distrustedTokens } = generation;
  const event: BadLogitsEvent =
    { cache, promptTokens, generatedTokens, foundTokens: Math.max(foundTokens, distrustedTokens), outcome };
  channel.publish(event);
}
