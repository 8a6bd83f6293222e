// LlamaWorld: a small model in the engine over a cache, and the same model without any cache; a test lets texts grow in any order
// and cut. The logits behind every chunk of every step are kept, and compared when a text leaves: with those of computing the
// whole text anew, which has one answer for all its beginnings.

import type { ExecutionContext } from 'ava';

import { isKvError, KvCache, type DenseKernelsOptions, type KvCacheOptions, type Sequence } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaEngineOptions } from '#internal/llama/engine-options.js';
import { LlamaModel } from '#internal/llama/model.js';
import { pageBytes } from './llama-shapes.js';
import { difference, isLikeliest, mostLikely, tolerance } from './logits.js';
import { removeFolder, writeLlama, type MadeLlama } from './made-llama.js';
import { PlainLlama } from './plain-llama.js';

/** A text and how much of it is computed. */
export interface Member {
  readonly text: number[];
  readonly sequence: Sequence;
  /** Logits behind the last token, once it is computed. */
  logits: Float64Array | undefined;
  /** Of all its chunks so far. */
  readonly answers: Answer[];
}

interface Answer {
  /** How much of the text was computed then. */
  readonly tokens: number;
  readonly logits: Float64Array;
  /** For a failure's message. */
  readonly step: string;
}

export type WorldOptions = Partial<Omit<KvCacheOptions, 'model' | 'pool'>> & Pick<LlamaEngineOptions, 'passes'>;

export class LlamaWorld {
  readonly cache: KvCache;
  readonly members: Member[] = [];
  /** Cached tokens of all sequences so far, by how they came. */
  readonly cached = { adoptedTokens: 0, aliasedTokens: 0, copiedTokens: 0 };
  readonly #t: ExecutionContext;
  readonly #folder: string;
  readonly #engine: LlamaEngine;
  readonly #plain: PlainLlama;

  /** `dense` is for the engine's arithmetic. */
  constructor(t: ExecutionContext, made: MadeLlama, { passes, ...options }: WorldOptions = {}, dense: DenseKernelsOptions = { threads: 2 }) {
    this.#t = t;
    this.#folder = writeLlama(made);
    const model = new LlamaModel(this.#folder, dense);
    this.cache = new KvCache({
      model: model.shape('float32'), slots: 6, maxTokens: 256, memoryBudgetBytes: 2 ** 26, driver: 'host', pageBytes, ...options,
    });
    this.#engine = new LlamaEngine({ model, cache: this.cache, passes });
    this.#plain = new PlainLlama(made);
  }

  /** Leases a slot for a text; what is cached of it counts as computed. */
  acquire(text: readonly number[]): Member {
    const sequence = this.cache.acquire({ tokens: text });
    const { cachedBy } = sequence;
    this.cached.adoptedTokens += cachedBy.adoptedTokens;
    this.cached.aliasedTokens += cachedBy.aliasedTokens;
    this.cached.copiedTokens += cachedBy.copiedTokens;
    const member: Member = { text: [...text], sequence, logits: undefined, answers: [] };
    this.members.push(member);
    return member;
  }

  fork({ text, sequence, logits }: Member): Member {
    const member: Member = { text: [...text], sequence: sequence.fork(), logits, answers: [] };
    this.members.push(member);
    return member;
  }

  /** Compares everything that was computed of a text, and gives its slot back. */
  release(member: Member): void {
    const { text, sequence, answers } = member;
    const expected = this.#plain.logits(text.slice(0, sequence.length));
    for (const { tokens, logits, step } of answers) this.#compare(logits, expected[tokens - 1]!, step);
    sequence.release();
    this.members.splice(this.members.indexOf(member), 1);
  }

  /** Says the next token of a text, to be computed in a later step. */
  append(member: Member, token: number): void {
    member.sequence.append(token);
    member.text.push(token);
  }

  remaining({ text, sequence }: Member): number {
    return text.length - sequence.length;
  }

  /**
   * One pass: the next tokens of some texts, as many of each as given. False when pages are short; then nothing was computed.
   */
  async step(chunks: readonly (readonly [Member, number])[], call: 'prefill' | 'decode'): Promise<boolean> {
    const batch = this.cache.createBatch();
    for (const [{ sequence }, tokens] of chunks) batch.add(sequence, tokens);
    try {
      this.cache.prepare(batch);
    } catch (error) {
      if (isKvError(error) && error.code === 'KV_OUT_OF_PAGES') return false;
      throw error;
    }
    const { logits } = await this.#engine[call]({
      length: chunks.length,
      slots: Int32Array.from(chunks, ([{ sequence }]) => sequence.slot),
      positions: Int32Array.from(chunks, ([{ sequence }]) => sequence.length),
      tokenCounts: Int32Array.from(chunks, ([, tokens]) => tokens),
      tokens: Int32Array.from(chunks.flatMap(([{ text, sequence }, tokens]) => text.slice(sequence.length, sequence.length + tokens))),
      wantsLogits: new Uint8Array(chunks.length).fill(1),
    });
    this.cache.commit(batch);
    chunks.forEach(([member], index) => {
      const { vocabularyTokens: width } = this.#engine;
      const tokens = member.sequence.length;
      const actual = Float64Array.from(logits.subarray(index * width, (index + 1) * width));
      member.answers.push({ tokens, logits: actual, step: `${call}, sequence ${index} of ${chunks.length}, ${tokens} tokens` });
      member.logits = tokens === member.text.length ? actual : undefined;
    });
    return true;
  }

  /** Computes the rest of a text at once. */
  async finish(member: Member): Promise<Float64Array> {
    await this.step([[member, this.remaining(member)]], 'prefill');
    return member.logits!;
  }

  close(): void {
    while (this.members.length > 0) this.release(this.members[0]!);
    this.cache.verify();
    this.#engine.close();
    this.cache.close();
    removeFolder(this.#folder);
  }

  #compare(actual: Float64Array, expected: Float64Array, where: string): void {
    const worst = difference(actual, expected);
    if (!(worst <= tolerance)) this.#t.fail(`${where}: off by ${worst} of the largest logit`);
    else this.#t.true(isLikeliest(mostLikely(actual), expected), where);
  }
}
