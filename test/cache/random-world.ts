// RandomWorld: a cache under random operations, and a small model of what it must hold: which slots are leased, how long each
// sequence is, and which bytes are in it. Every operation is checked against the model as it happens.

import { isKvError, type Batch, type ErrorCode, type KvCache, type Sequence } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { CacheBench } from '../helpers/cache.js';
import { nativeOf } from '../helpers/native-of.js';

/** One live sequence as the model sees it; its first `stamped` tokens were stamped under `key`. */
interface Model {
  readonly sequence: Sequence;
  readonly key: number;
  readonly earmarkedTokens: number;
  length: number;
  stamped: number;
}

const tenants = ['a', 'b', 'c'];

export class RandomWorld {
  readonly #bench: CacheBench;
  readonly #cache: KvCache;
  readonly #random: Random;
  readonly #batch: Batch;
  readonly #streams: readonly bigint[];
  readonly #stale: Sequence[] = [];
  readonly #startBytes: number;
  #live: Model[] = [];
  #retiring = 0;
  #step = 0;
  #keys = 0;
  readonly counts: Record<string, number> = {};

  constructor(bench: CacheBench, random: Random) {
    this.#bench = bench;
    this.#cache = bench.cache;
    this.#random = random;
    this.#batch = bench.cache.createBatch();
    this.#startBytes = bench.cache.pool.memoryBudgetBytes;
    const native = nativeOf(bench.driver);
    this.#streams = bench.device === undefined ? [0n] : [native.createStream(), native.createStream()];
  }

  /** One random operation. */
  async operate(): Promise<void> {
    const roll = this.#random.next();
    if (roll < 0.16) this.#acquire();
    else if (roll < 0.72) this.#run();
    else if (roll < 0.86) this.#release();
    else if (roll < 0.91) this.#truncate();
    else if (roll < 0.95) this.#completeStep();
    else if (roll < 0.965) this.#useStaleHandle();
    else if (roll < 0.98) this.#completeWork();
    else if (roll < 0.986) this.#setBudget();
    else if (roll < 0.99) this.#cache.pool.trim();
    else if (roll < 0.995) await this.#settle();
    else this.#check();
  }

  /** Checks everything, and releases everything. */
  async end(): Promise<void> {
    await this.#settle();
    for (const model of this.#live) this.#assertBytes(model);
    this.#bench.device?.completeAll();
    for (const { sequence } of this.#live) sequence.release();
    this.#live = [];
    this.#cache.completeStep(this.#step + 2); // the last fence of all
    const native = nativeOf(this.#bench.driver);
    for (const stream of this.#streams) if (stream !== 0n) native.destroyStream(stream);
  }

  #acquire(): void {
    const { layout } = this.#cache;
    const promptTokens = this.#random.chance(0.3) ? 0 : 1 + this.#random.integer(layout.maxTokens >> this.#random.integer(4));
    const isReserved = promptTokens > 0 && this.#random.chance(0.5);
    const tenant = tenants[this.#random.integer(3)]!;
    const outcome = this.#try(() => this.#cache.acquire({ promptTokens, reserve: isReserved ? 'prompt' : 'none', tenant }));
    if (outcome === 'KV_NO_FREE_SLOT') return this.#expect(this.#live.length + this.#retiring >= layout.slots, 'a slot was free');
    if (outcome === 'KV_OUT_OF_PAGES') return this.#expect(isReserved, 'nothing was asked for');
    const sequence = this.#expectDone(outcome);
    this.#expect(!this.#live.some((model) => model.sequence.slot === sequence.slot), 'the slot was leased twice');
    this.#live.push({ sequence, key: this.#keys += 1, earmarkedTokens: isReserved ? promptTokens : 0, length: 0, stamped: 0 });
  }

  /** One step of some sequences: prepare, write, and commit or discard. */
  #run(): void {
    if (this.#live.length === 0) return;
    const entries = this.#draw(1 + this.#random.integer(4)).flatMap((model) => {
      const tokens = Math.min(1 + this.#random.integer(2 ** this.#random.integer(9)), this.#cache.layout.maxTokens - model.length);
      return tokens > 0 ? [{ model, tokens }] : [];
    });
    if (entries.length === 0) return;
    this.#batch.clear();
    for (const { model, tokens } of entries) this.#batch.add(model.sequence, tokens);
    const outcome = this.#try(() => this.#cache.prepare(this.#batch));
    if (outcome === 'KV_OUT_OF_PAGES') {
      const isEarmarked = entries.every(({ model, tokens }) => model.length + tokens <= model.earmarkedTokens);
      return this.#expect(!isEarmarked && !this.#batch.isPrepared, 'an earmark was broken');
    }
    this.#expectDone(outcome);
    for (const { model, tokens } of entries) {
      this.#cache.stamp(model.sequence, model.length, tokens, model.key);
      model.stamped = model.length + tokens;
    }
    const released = this.#random.chance(0.05) ? entries[0]!.model : undefined;
    if (released !== undefined) this.#releaseOne(released);
    const isCommitted = this.#random.chance(0.9);
    if (isCommitted) this.#cache.commit(this.#batch);
    else this.#cache.discard(this.#batch);
    for (const { model, tokens } of entries) {
      if (model === released) continue;
      if (isCommitted) model.length += tokens;
      this.#expect(model.sequence.length === model.length, 'a wrong length');
    }
  }

  #release(): void {
    const [model] = this.#draw(1);
    if (model !== undefined) this.#releaseOne(model);
  }

  #releaseOne(model: Model): void {
    const { sequence } = model;
    this.#assertBytes(model);
    const roll = this.#random.next();
    if (roll < 0.6) {
      sequence.release();
    } else if (roll < 0.8) {
      sequence.release({ fence: { step: this.#step + this.#random.integer(3) } });
    } else {
      const stream = this.#streams[this.#random.integer(this.#streams.length)]!;
      this.#useOnStream(model, stream);
      sequence.release({ fence: { stream } });
    }
    this.#live = this.#live.filter((other) => other !== model);
    this.#stale.push(sequence);
    if (this.#stale.length > 20) this.#stale.shift();
    this.#retiring = this.#cache.counts().retiringSlots;
  }

  /** A kernel that uses the sequence's memory; the mock notices if that is unmapped before it ran. */
  #useOnStream({ sequence, length }: Model, stream: bigint): void {
    if (this.#bench.device === undefined || length === 0) return;
    const { index, strides, tokenBytes } = this.#cache.tensors[this.#random.integer(this.#cache.tensors.length)]!;
    const bytes = (length - 1) * strides.tokenBytes + tokenBytes;
    this.#bench.device.queueWork(stream, [{ address: sequence.address(index), bytes, access: 'read' }]);
  }

  #truncate(): void {
    const [model] = this.#draw(1);
    if (model === undefined) return;
    model.length = this.#random.integer(model.length + 1);
    model.stamped = Math.min(model.stamped, model.length); // the tail may be taken
    model.sequence.truncate(model.length);
  }

  #completeStep(): void {
    this.#step += this.#random.integer(2);
    this.#cache.completeStep(this.#step);
    this.#retiring = this.#cache.counts().retiringSlots;
  }

  #completeWork(): void {
    const stream = this.#streams[this.#random.integer(this.#streams.length)]!;
    this.#bench.device?.completeStream(stream);
    this.#retiring = this.#cache.counts().retiringSlots;
  }

  #useStaleHandle(): void {
    const sequence = this.#stale[this.#random.integer(this.#stale.length)];
    if (sequence === undefined) return;
    const call = [
      () => sequence.length, () => sequence.release(), () => sequence.truncate(0), () => this.#cache.createBatch(1).add(sequence, 1),
    ][this.#random.integer(4)]!;
    this.#expect(this.#try(call) === 'KV_SLOT_RELEASED', 'a stale handle was taken');
  }

  #setBudget(): void {
    this.#cache.pool.setBudget(Math.ceil(this.#startBytes * (0.3 + this.#random.next())));
  }

  async #settle(): Promise<void> {
    await this.#cache.settled();
    this.#check();
    const { createdPages, mappedPages } = this.#cache.pool.counts();
    this.#expect(this.#bench.driver.memory().livePages === createdPages, 'the driver has other pages');
    this.#expect(this.#cache.counts().mappedPages === mappedPages, 'the pool has other mapped pages');
  }

  #check(): void {
    this.#cache.verify();
    const { activeSlots, usedTokens, quarantinedSlots } = this.#cache.counts();
    this.#expect(activeSlots === this.#live.length, 'other sequences are active');
    this.#expect(usedTokens === this.#live.reduce((tokens, { length }) => tokens + length, 0), 'other tokens are in use');
    this.#expect(quarantinedSlots === 0 && this.#cache.metrics.lateErrors === 0, 'something failed');
    const [model] = this.#draw(1);
    if (model !== undefined) this.#assertBytes(model);
  }

  #assertBytes({ sequence, key, length, stamped }: Model): void {
    this.#expect(sequence.length === length, 'a wrong length');
    const wrong = this.#cache.verifyStamp(sequence, 0, Math.min(length, stamped), key);
    this.#expect(wrong === 0, `slot ${sequence.slot} has ${wrong} tokens of another sequence`);
  }

  /** So many different live sequences, or all. */
  #draw(count: number): Model[] {
    const left = [...this.#live];
    const drawn: Model[] = [];
    while (drawn.length < count && left.length > 0) drawn.push(...left.splice(this.#random.integer(left.length), 1));
    return drawn;
  }

  #try<T>(call: () => T): { readonly value: T } | ErrorCode {
    try {
      const value = call();
      this.#count('done');
      return { value };
    } catch (error) {
      if (!isKvError(error)) throw error;
      this.#count(error.code);
      if (['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT', 'KV_SLOT_RELEASED'].includes(error.code)) return error.code;
      throw error;
    }
  }

  #expectDone<T>(outcome: { readonly value: T } | ErrorCode): T {
    if (typeof outcome === 'string') throw new Error(`unexpected ${outcome}`);
    return outcome.value;
  }

  #expect(holds: boolean, otherwise: string): void {
    if (!holds) throw new Error(otherwise);
  }

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }
}
