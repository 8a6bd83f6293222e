// ServedLlama: the reference engine behind a scheduler, with rules that only a test needs: it counts what the passes were like,
// makes rows that must not be read unreadable, answers later still, and fails when told to.

import type { Engine, EngineOutput, EnginePass, KvCache } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaEngineOptions } from '#internal/llama/engine-options.js';
import type { LlamaModel } from '#internal/llama/model.js';

export interface ServedLlamaOptions {
  readonly model: LlamaModel;
  readonly cache: KvCache;
  readonly passes?: LlamaEngineOptions['passes'];
  /** Before each pass; undefined: it begins at once. */
  readonly pause?: (() => Promise<unknown> | undefined) | undefined;
  /** Throws when a pass is to fail; called before and after it is computed. */
  readonly fault?: (() => void) | undefined;
}

export class ServedLlama implements Engine {
  readonly vocabularyTokens: number;
  readonly canSelect: boolean;
  /** Sequences in passes in the middle of their prompt. */
  chunks = 0;
  /** Most sequences in a pass. */
  largestPass = 0;
  readonly #engine: LlamaEngine;
  readonly #pause: (() => Promise<unknown> | undefined) | undefined;
  readonly #fault: () => void;

  constructor({ model, cache, passes, pause, fault }: ServedLlamaOptions) {
    this.#engine = new LlamaEngine({ model, cache, passes });
    this.vocabularyTokens = this.#engine.vocabularyTokens;
    this.canSelect = this.#engine.canSelect;
    this.#pause = pause;
    this.#fault = fault ?? (() => {});
  }

  prefill(pass: EnginePass): Promise<EngineOutput> {
    return this.#answer('prefill', pass);
  }

  decode(pass: EnginePass): Promise<EngineOutput> {
    return this.#answer('decode', pass);
  }

  /** Before its cache is closed. */
  [Symbol.dispose](): void {
    this.#engine.close();
  }

  async #answer(call: 'prefill' | 'decode', pass: EnginePass): Promise<EngineOutput> {
    await this.#pause?.();
    this.#fault();
    const { logits } = await this.#engine[call](pass);
    this.largestPass = Math.max(this.largestPass, pass.length);
    for (let index = 0; index < pass.length; index += 1) {
      if (pass.wantsLogits[index] === 1) continue;
      this.chunks += 1;
      logits.fill(Number.NaN, index * this.vocabularyTokens, (index + 1) * this.vocabularyTokens);
    }
    this.#fault();
    return { logits };
  }
}
