// Scene: an engine over a cache of its own on the CPU, and passes over next tokens of some texts, in any company and cut in any way.

import { KvCache, type Dtype, type LayoutKind, type Sequence } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaModel } from '#internal/llama/model.js';
import { pageBytes } from './llama-shapes.js';

/** Next tokens of a text. */
export interface Chunk {
  readonly text: readonly number[];
  readonly sequence: Sequence;
  readonly tokens: number;
}

export class Scene {
  readonly cache: KvCache;
  readonly engine: LlamaEngine;
  readonly #vocabularyTokens: number;

  constructor(model: LlamaModel, dtype: Dtype, layout: LayoutKind, passes: 'awaited' | 'blocking') {
    this.cache = new KvCache({ model: model.shape(dtype), layout, slots: 5, maxTokens: 256, memoryBudgetBytes: 2 ** 27, driver: 'host', pageBytes });
    this.engine = new LlamaEngine({ model, cache: this.cache, passes, results: 'exact' });
    this.#vocabularyTokens = model.config.vocabularyTokens;
  }

  /** Computes them; returns the logits behind each. */
  async step(chunks: readonly Chunk[]): Promise<Float32Array[]> {
    const batch = this.cache.createBatch();
    for (const { sequence, tokens } of chunks) batch.add(sequence, tokens);
    this.cache.prepare(batch);
    const call = chunks.every(({ tokens }) => tokens === 1) ? 'decode' : 'prefill';
    const { logits } = await this.engine[call]({
      length: chunks.length,
      slots: Int32Array.from(chunks, ({ sequence }) => sequence.slot),
      positions: Int32Array.from(chunks, ({ sequence }) => sequence.length),
      tokenCounts: Int32Array.from(chunks, ({ tokens }) => tokens),
      tokens: Int32Array.from(chunks.flatMap(({ text, sequence, tokens }) => text.slice(sequence.length, sequence.length + tokens))),
      wantsLogits: new Uint8Array(chunks.length).fill(1),
    });
    this.cache.commit(batch);
    const width = this.#vocabularyTokens;
    return chunks.map((_, index) => logits.slice(index * width, (index + 1) * width));
  }

  close(): void {
    this.engine.close();
    this.cache.verify();
    this.cache.close();
  }
}
