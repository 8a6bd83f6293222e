// StagePipeline: three small models in a row, each with a cache and a scheduler of its own, behind an encoder of images. The first reads
// text and images, each other one the rows that the one before hands over. What comes out is told as a digest per stage, of tokens and rows.

import { createHash } from 'node:crypto';

import type { ExecutionContext } from 'ava';
import {
  EncoderCache, isKvError, KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, type Engine, type GenerationOutcome, type GenerationRequest,
  type GenerationResult, type KvCacheOptions, type PromptItem, type SchedulerOptions,
} from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { GivenRows } from '#internal/llama/engine-options.js';
import { SmallEngine } from '../../build-examples/stages/small-engine.js';
import { SmallModel, uniform } from '../../build-examples/stages/small-model.js';
import { turn } from './pattern-engine.js';

const words = 40;
const answers = 24;
/** Stands between what a stage has read and what it answers; the first stage, which answers with words, does not know it: where it stands, no row is given. */
const separator = words;
export const imageTokens = 6;
const imageWidth = 10;
/** Rows of K and V end inside tokens, and so do pages of side tensors. */
const [stateWidth, sideWidth] = [24, 700];
const kvHeads = 14; // of which one is used
const pageBytes = 65_536;

/** A prompt, and the images in it. */
export interface StagePrompt {
  readonly tokens: readonly number[];
  readonly images: readonly { readonly at: number; readonly number: number }[];
  readonly answerTokens: number;
}

export type SchedulerName = 'naive' | 'offline' | 'online';

/** Which caches are on: the encoder's, and that of each stage. */
export type CacheSwitches = readonly [encoder: boolean, first: boolean, second: boolean, third: boolean];

export interface StagePipelineOptions {
  readonly scheduler: SchedulerName;
  readonly caches: CacheSwitches;
  /** Chooses urgencies, cancellations and pauses; undefined: there are none. */
  readonly random?: Random | undefined;
  /** Of each cache. */
  readonly memory: Pick<KvCacheOptions, 'slots' | 'memoryBudgetBytes' | 'sideBudgetBytes' | 'handOverSlots'>;
}

interface Stage {
  readonly cache: KvCache;
  readonly engine: SmallEngine;
  readonly run: (requests: readonly GenerationRequest[]) => AsyncIterable<GenerationOutcome>;
  readonly close: () => Promise<void>;
  /** Preemptions of its results. */
  preemptions: number;
}

/** A request on its way through the stages. */
interface Travel {
  readonly prompt: StagePrompt;
  readonly items: readonly PromptItem[];
  tokens: readonly number[];
  given: readonly GivenRows[];
  /** Lets go of what `given` lies in. */
  release: () => void;
  readonly digests: string[];
  isOver: boolean;
}

export class StagePipeline {
  readonly stages: readonly Stage[];
  cancelled = 0;
  encoded = 0;
  readonly #random: Random | undefined;
  readonly #images: EncoderCache | undefined;
  /** Resolve when the input of a request is read no more: after its end, where that was in the middle of a pass. */
  readonly #inputsRead: Promise<void>[] = [];

  constructor({ scheduler, caches: [isEncoderCaching, ...isCaching], random, memory }: StagePipelineOptions) {
    this.#random = random;
    if (isEncoderCaching) this.#images = new EncoderCache({ budgetBytes: 2 ** 16, kinds: { image: { width: imageWidth, dtype: 'float32' } } });
    this.stages = [imageWidth, sideWidth, sideWidth].map((givenWidth, index) => {
      const model = new SmallModel({
        seed: 10 + index, ...vocabularyOf(index), givenWidth, sideWidth, width: stateWidth,
      });
      const engine = new SmallEngine({ model, side: 'rows', tokenStride: kvHeads * stateWidth });
      const cache = new KvCache({
        ...memory, model: { ...model.shape, kvHeads }, driver: 'host', layout: 'per-layer', maxTokens: 256, pageBytes, prefixCache: isCaching[index] === true ? {} : 'off',
        sideTensors: { rows: { width: sideWidth, dtype: 'float32', pageBytes } },
      });
      return { cache, engine, preemptions: 0, ...runOf(scheduler, { cache, engine: this.#pausing(engine), prefillTokensPerStep: 40, watermarkRows: 0 }) };
    });
  }

  /** Takes prompts through all stages together; digests of each as far as it came. */
  async serve(prompts: readonly StagePrompt[]): Promise<readonly string[][]> {
    const travels: Travel[] = prompts.map((prompt) => ({
      prompt, tokens: prompt.tokens, given: [], release: () => {}, digests: [], isOver: false,
      items: prompt.images.map(({ at, number }) => ({ at, length: imageTokens, kind: 'item', hash: `image ${number}` })),
    }));
    await Promise.all(travels.map((travel) => this.#giveImages(travel)));
    for (const stage of this.stages) await this.#pass(stage, travels.filter(({ isOver }) => !isOver));
    for (const { isOver, release } of travels) if (!isOver) release();
    return travels.map(({ digests }) => digests);
  }

  /** Closes everything; nothing may be left. */
  async close(t: ExecutionContext): Promise<void> {
    await Promise.all(this.#inputsRead);
    for (const { close } of this.stages) await close();
    for (const { cache } of this.stages) {
      const { leasedSlots, heldBytes } = cache.sideCounts();
      t.deepEqual({ leasedSlots, heldBytes, used: cache.counts().activeSlots }, { leasedSlots: 0, heldBytes: 0, used: 0 });
      cache.verify();
      cache.close();
    }
    if (this.#images === undefined) return;
    t.is(this.#images.counts().holds, 0);
    this.#images.close();
  }

  /** One stage: what it answers, with its rows, is what the next one is given. */
  async #pass(stage: Stage, travels: readonly Travel[]): Promise<void> {
    const requests = travels.map(({ prompt, tokens, items, given, release }) => ({
      tokens, items, input: given, handOver: true, maxNewTokens: prompt.answerTokens, ...this.#fate(),
      releaseInput: this.#whenRead(release),
    }));
    for await (const outcome of stage.run(requests)) {
      const travel = travels[outcome.index]!;
      if (outcome.status === 'rejected') {
        if (!isKvError(outcome.reason, 'KV_ABORTED')) throw outcome.reason as Error;
        this.cancelled += 1;
        travel.isOver = true;
      } else {
        stage.preemptions += outcome.value.preemptions;
        take(travel, outcome.value);
      }
    }
  }

  /** `release`, whose call is waited for before anything is closed. */
  #whenRead(release: () => void): () => void {
    let resolve = (): void => {};
    this.#inputsRead.push(new Promise((settle) => { resolve = settle; }));
    return () => {
      release();
      resolve();
    };
  }

  /** How urgent a request is, and whether it is cancelled. */
  #fate(): Pick<GenerationRequest, 'urgency' | 'signal'> {
    const random = this.#random;
    if (random === undefined) return {};
    const controller = new AbortController();
    const abort = async (turns: number): Promise<void> => {
      for (let at = 0; at < turns; at += 1) await turn();
      controller.abort();
    };
    if (random.chance(0.08)) void abort(random.integer(30));
    return { urgency: random.chance(0.3) ? random.integer(4) : 0, signal: controller.signal };
  }

  /** Gives a travel the rows of its images. */
  async #giveImages(travel: Travel): Promise<void> {
    const held = await Promise.all(travel.prompt.images.map(async ({ at, number }) => {
      const compute = (): Float32Array => {
        this.encoded += 1;
        return encode(number);
      };
      if (this.#images === undefined) return { at, rows: compute(), release: () => {} };
      const hold = await this.#images.acquire({ kind: 'image', hash: `image ${number}`, tokens: imageTokens, compute });
      return { at, rows: this.#images.range(hold) as Float32Array, release: () => { hold.release(); } };
    }));
    travel.given = held;
    travel.release = () => { held.forEach(({ release }) => { release(); }); };
  }

  /** An engine that sometimes lets the event loop turn. */
  #pausing(engine: SmallEngine): Engine {
    const compute: Engine['prefill'] = (pass) => (this.#random?.chance(0.5) ? turn().then(() => engine.prefill(pass)) : engine.prefill(pass));
    return { vocabularyTokens: engine.vocabularyTokens, prefill: compute, decode: compute };
  }
}

function vocabularyOf(stage: number): { readonly vocabularyTokens: number; readonly firstAnswer: number } {
  return stage === 0 ? { vocabularyTokens: words, firstAnswer: 0 } : { vocabularyTokens: words + 1 + answers, firstAnswer: words + 1 };
}

/** Notes a result, and prepares the next stage: it reads the tokens that have rows, and what separates them from its answer. */
function take(travel: Travel, { tokens, side }: GenerationResult): void {
  const rows = side!.rows('rows') as Float32Array;
  const text = [...travel.tokens, ...tokens].slice(0, side!.tokens);
  const bytes = (array: Int32Array | Float32Array): Uint8Array => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  travel.digests.push(createHash('sha1').update(bytes(tokens)).update(bytes(rows)).digest('hex'));
  travel.release = () => { side!.close(); };
  travel.given = [{ at: 0, rows }];
  travel.tokens = [...text, separator];
}

/** Rows [token, imageWidth] of an image. */
function encode(number: number): Float32Array {
  const random = uniform(1_000 + number);
  return Float32Array.from({ length: imageTokens * imageWidth }, () => 4 * random());
}

function runOf(name: SchedulerName, options: SchedulerOptions): Pick<Stage, 'run' | 'close'> {
  const close = async (): Promise<void> => {};
  if (name === 'naive') return { run: (requests) => new NaiveScheduler(options).run(requests), close };
  if (name === 'offline') return { run: (requests) => new OfflineScheduler(options).run(requests), close };
  const scheduler = new OnlineScheduler(options);
  return {
    close: () => scheduler.close(),
    async *run(requests) {
      const settled = requests.map((request) => scheduler.submit(request).result);
      for (const [index, outcome] of (await Promise.allSettled(settled)).entries()) yield { index, ...outcome };
    },
  };
}
