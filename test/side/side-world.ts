// SideWorld: many sequences with side tensors on one cache, doing everything at random, and a model of what must be found: for each text
// and tensor, how far it was ever written. Every row that can be read, of K and V too, is compared with what was written for exactly that
// text, so K, V and side tensors cannot disagree.

import { isKvError } from '#internal/base/errors.js';
import type { Random } from '#internal/base/random.js';
import type { Batch, HandOver, KvCache, PromptOptions, Sequence, SideTensorInfo } from 'virtual-kv';
import { CoverModel } from './cover-model.js';
import type { DeviceSource } from './device-source.js';
import { readRows } from './side-reading.js';
import { checkRows, hashesOf, rowOf } from './world-rows.js';

/** Whose requests they are. The first is asked for most. */
const domains: readonly PromptOptions[] = [{}, { tenant: 'b' }, { salt: 's' }, { adapter: 'l' }, { tenant: 'b', salt: 's', adapter: 'l' }];

interface Running {
  readonly sequence: Sequence;
  readonly needs: readonly string[];
  readonly isStored: boolean;
  /** Requests of others never find its text. */
  readonly domain: string;
  /** Tensors of which some rows were not written: no more can be. */
  readonly gaps: Set<string>;
  text: number[];
}

/** A sequence of a batch, and its new tokens. */
interface Added {
  readonly running: Running;
  readonly tokens: number;
  /** Tensors of which its rows are written. */
  readonly written: readonly SideTensorInfo[];
}

interface Lease {
  readonly handOver: HandOver;
  readonly running: Running;
  text: number[];
}

export interface SideWorldOptions {
  readonly random: Random;
  readonly maxTokens: number;
  /** Whether nothing is ever lost: then what is found is known to the token. */
  readonly isLossless: boolean;
  readonly budgets: readonly number[];
  /** Rows are computed there half the time; undefined: always in the CPU's memory. */
  readonly source?: DeviceSource | undefined;
  /** Lets some of the device's queued work be done. */
  readonly advance?: (() => void) | undefined;
}

export class SideWorld {
  readonly #cache: KvCache;
  readonly #options: SideWorldOptions;
  readonly #random: Random;
  readonly #running: Running[] = [];
  readonly #leases: Lease[] = [];
  readonly #texts: number[][] = [];
  readonly #model: CoverModel;
  #namespace = 0;
  refusals = 0;
  hits = 0;

  constructor(cache: KvCache, options: SideWorldOptions) {
    this.#cache = cache;
    this.#model = new CoverModel(cache, options.isLossless);
    this.#options = options;
    this.#random = options.random;
  }

  /** One operation. Refusals for want of memory are expected, and change nothing that can be seen. */
  step(): void {
    try {
      this.#operate();
    } catch (error) {
      const isRefusal = ['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT', 'KV_OUT_OF_MAPPINGS', 'KV_OUT_OF_DEVICE_MEMORY', 'KV_DRIVER_CALL_FAILED', 'KV_SLOT_BUSY']
        .some((code) => isKvError(error, code as 'KV_OUT_OF_PAGES'));
      if (!isRefusal) throw error;
      this.refusals += 1;
      this.#makeRoom();
    }
  }

  /** Everything that runs or is handed over has its rows; the cache's books are right. */
  verify(): void {
    for (const running of this.#running) this.#checkRunning(running, true);
    for (const lease of this.#leases) this.#checkLease(lease, true);
    this.#cache.verify();
  }

  /** Ends all, and returns the bytes that only cached texts use. */
  finish(): number {
    for (const { handOver } of this.#leases.splice(0)) handOver.close();
    for (const { sequence } of this.#running.splice(0)) sequence.release();
    this.#cache.verify();
    return this.#cache.sideCounts().usedBytes;
  }

  #operate(): void {
    const random = this.#random;
    if (this.#options.advance !== undefined && random.chance(0.3)) this.#options.advance();
    const running = this.#running[random.integer(this.#running.length)];
    const choice = random.integer(100);
    if (running === undefined || choice < 16) this.#acquire();
    else if (choice < 50) this.#compute();
    else if (choice < 56 && !this.#options.isLossless) this.#truncate(running); // which may lose what only this sequence had
    else if (choice < 62) this.#fork(running);
    else if (choice < 74) this.#release(running);
    else if (choice < 82) this.#handOver(running);
    else if (choice < 88) this.#closeLease();
    else if (choice < 90) this.#checkLookup(this.#text(), this.#domain());
    else if (choice < 92) this.#cache.setSideBudget(this.#options.budgets[random.integer(this.#options.budgets.length)]!);
    else if (choice < 93 && !this.#options.isLossless) this.#reset();
    else this.#checkRunning(running);
  }

  #acquire(): void {
    const random = this.#random;
    const text = this.#text();
    const names = this.#cache.sideTensors.map(({ name }) => name);
    const needs = random.chance(0.5) ? names : names.filter(() => random.chance(0.6));
    const domain = this.#domain();
    const caching = random.chance(0.85) ? 'read-write' : random.chance(0.5) ? 'read' : 'write';
    const found = caching === 'write' ? 0 : this.#cache.prefixes.lookup({ tokens: text, needs, ...domain }).cachedTokens;
    const reserve = random.chance(0.5) ? 'prompt' : 'none';
    const sequence = this.#cache.acquire({ tokens: text, needs, caching, reserve, ...domain });
    // A shortage of K and V may cost the end of a match, which has to be copied.
    if (sequence.cachedTokens > found) throw new Error(`${sequence.cachedTokens} tokens were acquired where ${found} are cached`);
    this.hits += sequence.cachedTokens > 0 ? 1 : 0;
    const running = { sequence, needs, isStored: caching !== 'read', domain: this.#nameOf(domain), gaps: new Set<string>(), text };
    this.#running.push(running);
    this.#checkRunning(running);
  }

  /** A batch of some sequences, each with its own number of tokens. */
  #compute(): void {
    const random = this.#random;
    const cache = this.#cache;
    const chosen = this.#running.filter(() => random.chance(0.4)).slice(0, 6);
    if (chosen.length === 0) return;
    const skipped = cache.sideTensors.filter(() => random.chance(0.04)).map(({ name }) => name);
    const isPerSequence = random.chance(0.5);
    const batch = cache.createBatch();
    const chosenTokens: Omit<Added, 'written'>[] = [];
    for (const running of chosen) {
      const { sequence, text } = running;
      if (text.length === sequence.length) {
        if (text.length + 4 > this.#options.maxTokens) continue;
        const more = Array.from({ length: 1 + random.integer(3) }, () => random.integer(3));
        text.push(...more);
        sequence.append(more);
      }
      const tokens = 1 + random.integer(text.length - sequence.length);
      batch.add(sequence, tokens);
      chosenTokens.push({ running, tokens });
    }
    if (chosenTokens.length === 0) return;
    cache.prepare(batch);
    const hasGap = ({ needs, gaps }: Running, name: string): boolean => needs.includes(name) && gaps.has(name);
    const tensors = cache.sideTensors.filter(({ name }) => !skipped.includes(name));
    const whole = tensors.filter(({ name }) => chosenTokens.every(({ running }) => !hasGap(running, name)));
    const added = chosenTokens.map(({ running, tokens }) => ({
      running, tokens, written: isPerSequence ? tensors.filter(({ name }) => running.needs.includes(name) && !running.gaps.has(name)) : whole,
    }));
    try {
      if (random.chance(0.05)) { // what is written and then discarded counts for nothing
        this.#write(isPerSequence ? undefined : batch, added, 1);
        cache.discard(batch);
        cache.prepare(batch);
      }
      this.#write(isPerSequence ? undefined : batch, added, 0);
    } catch (error) {
      cache.discard(batch);
      throw error;
    }
    cache.commit(batch);
    for (const { running, written } of added) {
      for (const { name } of cache.sideTensors) if (!written.some((tensor) => tensor.name === name)) running.gaps.add(name);
      this.#note(running);
    }
  }

  /** Writes the new tokens of each: side rows of the whole batch, or of its sequences one by one (undefined). `noise` makes others of them. */
  #write(batch: Batch | undefined, added: readonly Added[], noise: number): void {
    for (const { running: { sequence, text, domain }, tokens } of added) {
      const hashes = hashesOf(text, domain);
      for (let at = sequence.length; at < sequence.length + tokens; at += 1) this.#cache.stamp(sequence, at, 1, hashes[at]! + noise);
    }
    if (batch !== undefined) {
      this.#cache.writeSide(batch, Object.fromEntries(added[0]!.written.map((tensor) => [tensor.name, this.#placed(rowsOf(added, tensor, noise))])));
      return;
    }
    for (const one of added) {
      const { sequence } = one.running;
      const half = this.#random.chance(0.5) ? one.tokens : this.#random.integer(one.tokens + 1);
      for (const tensor of one.written) {
        const rows = rowsOf([one], tensor, noise);
        const at = half * tensor.width;
        if (half > 0) sequence.writeSide(sequence.length, { [tensor.name]: half < one.tokens ? rows.subarray(0, at) : this.#placed(rows) });
        if (half < one.tokens) sequence.writeSide(sequence.length + half, { [tensor.name]: this.#placed(rows.subarray(at)) });
      }
    }
  }

  /** The rows, or where they are on the device. */
  #placed(rows: Float32Array): Float32Array | ReturnType<DeviceSource['put']> {
    const { source } = this.#options;
    return source !== undefined && this.#random.chance(0.6) ? source.put(rows) : rows;
  }

  #truncate(running: Running): void {
    const { sequence } = running;
    const tokens = Math.max(0, sequence.length - this.#random.integer(this.#random.chance(0.7) ? 6 : sequence.length + 1));
    sequence.truncate(tokens);
    const kept = running.text.slice(0, tokens);
    const more = this.#random.chance(0.5) ? [] : Array.from({ length: 1 + this.#random.integer(3) }, () => this.#random.integer(3));
    running.text = [...kept, ...more].slice(0, this.#options.maxTokens);
    if (running.text.length > tokens) sequence.append(running.text.slice(tokens));
    for (const lease of this.#leases) if (lease.running === running) lease.text = running.text;
    for (const name of running.needs) if (sequence.sideTokens(name) === tokens) running.gaps.delete(name);
    this.#checkRunning(running);
  }

  #fork(running: Running): void {
    const sequence = running.sequence.fork();
    this.#running.push({ ...running, sequence, gaps: new Set(running.gaps), text: running.text.slice() });
    const fork = this.#running.at(-1)!;
    this.#checkRunning(fork);
  }

  #release(running: Running): void {
    this.#checkRunning(running);
    for (const lease of this.#leases) if (lease.running === running) lease.text = running.text.slice();
    running.sequence.release();
    this.#running.splice(this.#running.indexOf(running), 1);
  }

  #handOver(running: Running): void {
    if (running.needs.length === 0 || this.#leases.length > 5) return;
    const names = this.#random.chance(0.5) ? undefined : [running.needs[0]!];
    this.#leases.push({ handOver: running.sequence.handOver(names), running, text: running.text });
  }

  #closeLease(): void {
    const at = this.#random.integer(this.#leases.length);
    const lease = this.#leases[at];
    if (lease === undefined) return;
    this.#checkLease(lease);
    lease.handOver.close();
    this.#leases.splice(at, 1);
  }

  #reset(): void {
    if (this.#random.chance(0.5)) {
      this.#namespace += 1;
      this.#cache.prefixes.setNamespace(`weights ${this.#namespace % 2}`);
      return;
    }
    for (const running of [...this.#running]) this.#release(running);
    const preempt = this.#options.advance !== undefined; // some of them wait for their rows
    this.#cache.prefixes.reset({ preempt });
  }

  #makeRoom(): void {
    const [oldest] = this.#running;
    if (oldest !== undefined) this.#release(oldest);
    else this.#closeLease();
  }

  #text(): number[] {
    const random = this.#random;
    const model = this.#texts.length > 0 && random.chance(0.85) ? this.#texts[random.integer(this.#texts.length)]! : [];
    const length = 1 + random.integer(this.#options.maxTokens - 4);
    const shared = random.integer(Math.min(model.length, length) + 1);
    const text = Array.from({ length }, (_, at) => (at < shared ? model[at]! : random.integer(3)));
    this.#texts[this.#texts.length < 24 ? this.#texts.length : random.integer(24)] = text;
    return text.slice();
  }

  #domain(): PromptOptions {
    return this.#random.chance(0.75) ? domains[0]! : domains[this.#random.integer(domains.length)]!;
  }

  #nameOf(domain: PromptOptions): string {
    return JSON.stringify([domain, this.#namespace % 2]);
  }

  #note({ sequence, text, needs, isStored, domain, gaps }: Running): void {
    if (!isStored) return;
    const hashes = hashesOf(text.slice(0, sequence.length), domain);
    this.#model.note('', hashes);
    for (const name of needs) this.#model.note(name, gaps.has(name) ? hashes.slice(0, sequence.sideTokens(name)) : hashes); // up to where it was written
  }

  #checkLookup(text: readonly number[], domain: PromptOptions): void {
    if (this.#options.isLossless) this.#options.advance?.(); // all that was written has arrived
    this.#model.check(text, hashesOf(text, this.#nameOf(domain)), domain);
  }

  /** @param isThorough Whether K and V of all tokens are compared, and not of a few only. */
  #checkRunning({ sequence, needs, text, gaps, domain }: Running, isThorough = false): void {
    const hashes = hashesOf(text, domain);
    const step = isThorough ? 1 : 1 + this.#random.integer(12);
    for (let at = 0; at < sequence.length; at += step) {
      if (this.#cache.verifyStamp(sequence, at, 1, hashes[at]!) !== 0) throw new Error(`K or V of token ${at} are not those of the text`);
    }
    if (needs.length === 0) return;
    for (const name of needs) {
      const tokens = sequence.sideTokens(name);
      if (!gaps.has(name) && tokens < sequence.length) throw new Error(`${name}: ${tokens} of ${sequence.length} tokens have rows`);
    }
    const handOver = sequence.handOver();
    try {
      this.#checkRows(handOver, hashes, isThorough);
    } finally {
      handOver.close();
    }
  }

  #checkLease({ handOver, text, running: { domain } }: Lease, isThorough = false): void {
    this.#checkRows(handOver, hashesOf(text, domain), isThorough);
  }

  /** Compares every element; unless it is thorough, from some token on. */
  #checkRows(handOver: HandOver, hashes: readonly number[], isThorough: boolean): void {
    const { tokens } = handOver;
    for (const { name, width } of this.#cache.sideTensors) {
      if (!handOver.names.includes(name)) continue;
      const from = isThorough ? 0 : this.#random.integer(tokens + 1);
      checkRows(readRows(this.#cache, handOver, name, from, tokens), { hashes: hashes.slice(from, tokens), tensor: name, width, from });
    }
  }
}

/** Rows of the next tokens of each, packed; `noise` makes others of them. */
function rowsOf(added: readonly Added[], { name, width }: SideTensorInfo, noise: number): Float32Array {
  const rows = new Float32Array(added.reduce((sum, { tokens }) => sum + tokens, 0) * width);
  let at = 0;
  for (const { running: { sequence, text, domain }, tokens } of added) {
    const hashes = hashesOf(text, domain);
    for (let index = 0; index < tokens; index += 1, at += 1) rows.set(rowOf(hashes[sequence.length + index]! + noise, name, width), at * width);
  }
  return rows;
}
