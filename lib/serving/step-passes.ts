// StepPasses: the two passes of a step, those who decode and chunks of prompts, and the batch that holds both. Filled anew
// every step, and reused. It prepares nothing.

import type { Batch } from '../cache/batch.js';
import type { KvCache } from '../cache/kv-cache.js';
import { planStep } from './step-plan.js';
import type { Generation } from './generation.js';
import { Pass } from './pass.js';

export class StepPasses {
  readonly batch: Batch;
  readonly decode: Pass;
  readonly prefill: Pass;

  /** For at most `maxBatch` sequences. */
  constructor(cache: KvCache, maxBatch: number) {
    this.batch = cache.createBatch(maxBatch);
    this.decode = new Pass(maxBatch);
    this.prefill = new Pass(maxBatch);
  }

  /** Plans a step of these generations: a token for each that decodes, and so many tokens of prompts at most. */
  fill(generations: readonly Generation[], prefillTokensPerStep: number): void {
    planStep(generations, prefillTokensPerStep);
    this.batch.clear();
    this.decode.clear();
    this.prefill.clear();
    for (const generation of generations) {
      const { passTokens, remainingPrefillTokens, sequence } = generation;
      if (passTokens === 0) continue;
      this.batch.add(sequence!, passTokens);
      (remainingPrefillTokens === 0 ? this.decode : this.prefill).add(generation);
    }
  }
}
