// Pipeline: three stages and an encoder, each with a cache of its own that can be switched on and off. A thinker (a Llama) reads an image
// and text and answers; a talker reads the thinker's hidden states and answers with codes of speech; a vocoder makes samples of them.
// What one stage hands over, cached or computed, the next reads as one array.

import { createHash } from 'node:crypto';

import {
  EncoderCache, KvCache, OnlineScheduler, type Engine, type GenerationRequest, type GenerationResult, type KvCacheOptions, type PromptItem,
} from 'virtual-kv';
import { LlamaEngine, type LlamaModel } from 'virtual-kv/llama';

import { encodeImage, imageTokens } from './image.js';
import { SmallEngine } from './small-engine.js';
import { SmallModel } from './small-model.js';

/** Codes that the talker answers with. */
const codes = 64;
const codesPerAnswer = 24;
/** Samples for each code. */
const samplesPerCode = 20;
const speechWidth = 48;

/** The parts of the pipeline that have a cache. */
export const stageNames = ['encoder', 'thinker', 'talker', 'vocoder'] as const;
export type StageName = (typeof stageNames)[number];

/** Which of them cache. */
export type CacheSwitches = Readonly<Record<StageName, boolean>>;

/** What the pipeline makes of one request. */
export interface Spoken {
  /** The thinker's answer. */
  readonly tokens: Int32Array;
  readonly codes: Int32Array;
  readonly samples: Float32Array;
}

interface Stage {
  readonly cache: KvCache;
  readonly scheduler: OnlineScheduler;
}

export class Pipeline {
  readonly thinker: Stage;
  readonly talker: Stage;
  readonly vocoder: Stage;
  encodedImages = 0;
  encoderMs = 0;
  readonly #images: EncoderCache | undefined;
  readonly #imageWidth: number;
  /** The first token behind those of the thinker: what it said is over. */
  readonly #begin: number;
  readonly #llama: LlamaEngine;

  constructor(model: LlamaModel, caches: CacheSwitches) {
    const { hidden, vocabularyTokens: words } = model.config;
    this.#imageWidth = hidden;
    this.#begin = words;
    if (caches.encoder) this.#images = new EncoderCache({ budgetBytes: 2 ** 20, kinds: { image: { width: hidden, dtype: 'float32' } } });
    const optionsOf = (stage: StageName): Omit<KvCacheOptions, 'model'> => ({
      driver: 'host', layout: 'per-layer', slots: 4, maxTokens: 1_024, memoryBudgetBytes: 2 ** 25, pageBytes: 2 ** 16, prefixCache: caches[stage] ? {} : 'off',
    });
    const thinkerCache = new KvCache({ ...optionsOf('thinker'), model: model.shape(), sideTensors: { hidden: { width: hidden, dtype: 'float32' } } });
    this.#llama = new LlamaEngine({ model, cache: thinkerCache, hidden: 'hidden' });
    this.thinker = stageOf(thinkerCache, withOneKernel(this.#llama));
    const vocabularyTokens = words + 1 + codes;
    const talker = new SmallModel({ seed: 1, vocabularyTokens, firstAnswer: words + 1, givenWidth: hidden, sideWidth: speechWidth });
    const vocoder = new SmallModel({ seed: 2, vocabularyTokens, firstAnswer: words + 1, givenWidth: speechWidth, sideWidth: samplesPerCode });
    const [talks, sounds] = [new SmallEngine({ model: talker, side: 'speech' }), new SmallEngine({ model: vocoder, side: 'samples' })];
    this.talker = stageOf(new KvCache({ ...optionsOf('talker'), model: talker.shape, sideTensors: talks.sideTensors() }), talks);
    this.vocoder = stageOf(new KvCache({ ...optionsOf('vocoder'), model: vocoder.shape, sideTensors: sounds.sideTensors() }), sounds);
  }

  /** Says what the thinker answers to an image and a text. */
  async speak(image: Float32Array, text: readonly number[], maxNewTokens: number, stopTokens: readonly number[]): Promise<Spoken> {
    const hash = createHash('sha256').update(image).digest('hex');
    const items: PromptItem[] = [{ at: 0, length: imageTokens, kind: 'item', hash }];
    const prompt = [...new Array<number>(imageTokens).fill(0), ...text];
    const thought = await this.#withImage(image, hash, (rows) =>
      ask(this.thinker, { tokens: prompt, items, input: [{ at: 0, rows }], maxNewTokens, stopTokens }));
    using hidden = thought.side!;
    const words = [...prompt, ...thought.tokens].slice(0, hidden.tokens); // those that have a row
    const spoken = await ask(this.talker, {
      tokens: [...words, this.#begin], items, input: [{ at: 0, rows: hidden.rows('hidden') }], maxNewTokens: codesPerAnswer,
    });
    using speech = spoken.side!;
    const said = [...words, this.#begin, ...spoken.tokens].slice(0, speech.tokens);
    const sounded = await ask(this.vocoder, { tokens: said, items, input: [{ at: 0, rows: speech.rows('speech') }], maxNewTokens: 1 });
    using samples = sounded.side!;
    return { tokens: thought.tokens, codes: spoken.tokens, samples: (samples.rows('samples', words.length + 1) as Float32Array).slice() };
  }

  async close(): Promise<void> {
    for (const { scheduler } of this.#stages) await scheduler.close();
    this.#llama.close();
    for (const { cache } of this.#stages) {
      cache.verify();
      cache.close();
    }
    this.#images?.close();
  }

  get #stages(): readonly Stage[] {
    return [this.thinker, this.talker, this.vocoder];
  }

  /** Calls `use` with the rows of an image, which are there until it has resolved. Requests that may be cancelled need `releaseInput` for that. */
  async #withImage<T>(image: Float32Array, hash: string, use: (rows: Float32Array) => Promise<T>): Promise<T> {
    const compute = (): Float32Array => {
      const startMs = performance.now();
      const rows = encodeImage(image, this.#imageWidth);
      this.encodedImages += 1;
      this.encoderMs += performance.now() - startMs;
      return rows;
    };
    if (this.#images === undefined) return use(compute());
    using hold = await this.#images.acquire({ kind: 'image', hash, tokens: imageTokens, compute });
    return await use(this.#images.range(hold) as Float32Array);
  }
}

/** Decodes by the kernels of prompts: an answer is the prompt of the next turn, and would differ from that in the last bits. */
function withOneKernel(engine: LlamaEngine): Engine {
  const compute: Engine['prefill'] = (pass) => engine.prefill(pass);
  return { vocabularyTokens: engine.vocabularyTokens, prefill: compute, decode: compute };
}

function stageOf(cache: KvCache, engine: Engine): Stage {
  return { cache, scheduler: new OnlineScheduler({ cache, engine }) };
}

/** The result's hand-over must be closed. */
function ask({ scheduler }: Stage, request: GenerationRequest): Promise<GenerationResult> {
  return scheduler.submit({ ...request, handOver: true }).result;
}
