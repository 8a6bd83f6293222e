// CapturedDecoding: decoding steps of the engine as graphs, one for each power of two of sequences, which take one launch instead of
// hundreds. They are captured when a step first needs one so large, and again, all of them, when a larger one is needed: their
// activations are theirs alone and stay where they are. Nothing may be queued when it captures or closes.

import type { CapturedSteps, Kernels, SequenceSpans } from '../index.js';

import type { LlamaLayers } from './layers.js';
import type { LlamaModel } from './model.js';
import { PassBuffers } from './pass-buffers.js';
import type { LlamaPlace } from './place.js';

export interface CapturedDecodingOptions {
  readonly model: LlamaModel;
  readonly place: LlamaPlace;
  readonly kernels: Kernels;
  readonly layers: LlamaLayers;
}

export class CapturedDecoding {
  readonly #options: CapturedDecodingOptions;
  readonly #buffers: PassBuffers;
  #steps: CapturedSteps | undefined;

  constructor(options: CapturedDecodingOptions) {
    this.#options = options;
    this.#buffers = new PassBuffers(options.kernels.cache.driver, options.place.stream);
  }

  /** Sequences that the captured steps are for; 0 before there are any. */
  get mostSequences(): number {
    return this.#steps?.sizes.at(-1) ?? 0;
  }

  /** Captures steps for so many sequences, unless there are any. Throws what the driver throws; there are none then. */
  reach(sequences: number): void {
    if (sequences <= this.mostSequences) return;
    const { model: { config, rotary }, kernels, layers } = this.#options;
    const { slots, maxTokens } = kernels.cache.layout;
    const sizes = [1];
    while (sizes.at(-1)! < sequences) sizes.push(Math.min(2 * sizes.at(-1)!, slots));
    const most = sizes.at(-1)!;
    this.close();
    const at = this.#buffers.activations(config, most, most);
    const tables = rotary.upTo(maxTokens, (name, table) => this.#buffers.table(`rotary ${name}`, table));
    this.#steps = kernels.captureSteps({
      sizes,
      record: (step) => {
        const { size: count, tokens, positions } = step;
        const rows = { count, tokens, positions, sequences: step, attention: 'decodeAttention', tables, at } as const;
        layers.compute(rows);
        layers.computeLogits(rows);
      },
    });
  }

  /** Queues one step. After `reach`. */
  replay(sequences: SequenceSpans & { readonly count: number }, tokens: Int32Array): void {
    this.#steps!.replay(sequences, tokens);
  }

  /** The step's logits, [sequence, token of the vocabulary], valid until the next. Waits for it. */
  readLogits(count: number): Float32Array {
    return this.#buffers.readLogits(count * this.#options.model.config.vocabularyTokens);
  }

  /** Waits until all that was queued is done. */
  finish(): void {
    this.#buffers.finish();
  }

  close(): void {
    this.#steps?.close();
    this.#steps = undefined;
    this.#buffers.close();
  }
}
