// SideWorld: many sequences with side tensors on one cache, doing everything at random, and a model of what must be found: for each text
// and tensor, how far it was ever written. Every row that can be read is compared with what was written for exactly that text.

import { isKvError } from '#internal/base/errors.js';
import { mix32, type Random } from '#internal/base/random.js';
import type { Batch, HandOver, KvCache, Sequence, SideTensorInfo } from 'virtual-kv';
import type { DeviceSource } from './device-source.js';
import { readRows } from './side-reading.js';

interface Running {
  readonly sequence: Sequence;
  readonly needs: readonly string[];
  readonly isStored: boolean;
  readonly tenant: string | undefined;
  /** Tensors of which some rows were not written: no more can be. */
  readonly gaps: Set<string>;
  text: number[];
}

/** A sequence of a batch, and its new tokens. */
interface Added {
  readonly running: Running;
  readonly tokens: number;
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
  /** Prefixes that were cached with all their rows, by tensor ('' for K and V). */
  readonly #covered = new Map<string, Set<number>>();
  #namespace = 0;
  refusals = 0;
  hits = 0;

  constructor(cache: KvCache, options: SideWorldOptions) {
    this.#cache = cache;
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
    for (const running of this.#running) this.#checkRunning(running);
    for (const lease of this.#leases) this.#checkLease(lease);
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
    else if (choice < 90) this.#checkLookup(this.#text(), random.chance(0.5) ? undefined : 'b');
    else if (choice < 92) this.#cache.setSideBudget(this.#options.budgets[random.integer(this.#options.budgets.length)]!);
    else if (choice < 93 && !this.#options.isLossless) this.#reset();
    else this.#checkRunning(running);
  }

  #acquire(): void {
    const random = this.#random;
    const text = this.#text();
    const names = this.#cache.sideTensors.map(({ name }) => name);
    const needs = random.chance(0.5) ? names : names.filter(() => random.chance(0.6));
    const tenant = random.chance(0.8) ? undefined : 'b';
    const caching = random.chance(0.85) ? 'read-write' : random.chance(0.5) ? 'read' : 'write';
    const found = caching === 'write' ? 0 : this.#cache.prefixes.lookup({ tokens: text, needs, tenant }).cachedTokens;
    const reserve = random.chance(0.5) ? 'prompt' : 'none';
    const sequence = this.#cache.acquire({ tokens: text, needs, tenant, caching, reserve });
    // A shortage of K and V may cost the end of a match, which has to be copied.
    if (sequence.cachedTokens > found) throw new Error(`${sequence.cachedTokens} tokens were acquired where ${found} are cached`);
    this.hits += sequence.cachedTokens > 0 ? 1 : 0;
    const running = { sequence, needs, isStored: caching !== 'read', tenant, gaps: new Set<string>(), text };
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
    const batch = cache.createBatch();
    const added: Added[] = [];
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
      added.push({ running, tokens });
    }
    if (added.length === 0) return;
    cache.prepare(batch);
    const written = cache.sideTensors.filter(({ name }) => !skipped.includes(name) &&
      added.every(({ running }) => !running.needs.includes(name) || !running.gaps.has(name)));
    try {
      if (random.chance(0.05)) { // what is written and then discarded counts for nothing
        this.#write(batch, added, written, 1);
        cache.discard(batch);
        cache.prepare(batch);
      }
      this.#write(batch, added, written, 0);
    } catch (error) {
      cache.discard(batch);
      throw error;
    }
    cache.commit(batch);
    for (const { running } of added) {
      for (const { name } of cache.sideTensors) if (!written.some((tensor) => tensor.name === name)) running.gaps.add(name);
      this.#note(running);
    }
  }

  #write(batch: Batch, added: readonly Added[], tensors: readonly SideTensorInfo[], noise: number): void {
    const { source } = this.#options;
    const random = this.#random;
    this.#cache.writeSide(batch, Object.fromEntries(tensors.map(({ name, width }) => {
      const rows = rowsOf(added, name, width, noise);
      return [name, source !== undefined && random.chance(0.6) ? source.put(rows) : rows];
    })));
  }

  #truncate(running: Running): void {
    const { sequence } = running;
    const tokens = Math.max(0, sequence.length - this.#random.integer(this.#random.chance(0.7) ? 6 : sequence.length + 1));
    sequence.truncate(tokens);
    const kept = running.text.slice(0, tokens);
    running.text = this.#random.chance(0.5) ? kept : [...kept, ...Array.from({ length: 1 + this.#random.integer(3) }, () => this.#random.integer(3))];
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

  #note({ sequence, text, needs, isStored, tenant, gaps }: Running): void {
    if (!isStored) return;
    const hashes = hashesOf(text.slice(0, sequence.length), tenant ?? '');
    for (const name of ['', ...needs.filter((need) => !gaps.has(need))]) {
      let covered = this.#covered.get(name);
      if (covered === undefined) this.#covered.set(name, covered = new Set());
      for (const hash of hashes) covered.add(hash);
    }
    for (const name of gaps) { // up to where it was written
      if (!needs.includes(name)) continue;
      const covered = this.#covered.get(name) ?? new Set();
      for (const hash of hashes.slice(0, sequence.sideTokens(name))) covered.add(hash);
      this.#covered.set(name, covered);
    }
  }

  #checkLookup(text: readonly number[], tenant: string | undefined): void {
    if (this.#options.isLossless) this.#options.advance?.(); // all that was written has arrived
    const hashes = hashesOf(text, tenant ?? '');
    for (const needs of [[], ...this.#cache.sideTensors.map(({ name }) => [name])]) {
      const { cachedTokens } = this.#cache.prefixes.lookup({ tokens: text, needs, tenant });
      const covers = ['', ...needs].map((name) => firstMissing(hashes, this.#covered.get(name) ?? new Set()));
      const most = Math.min(text.length - 1, ...covers);
      if (cachedTokens > most) throw new Error(`${cachedTokens} tokens are found with [${needs.join()}], and ${most} were ever there`);
      if (this.#options.isLossless && cachedTokens < most) throw new Error(`${cachedTokens} tokens are found with [${needs.join()}] of ${most} that are there`);
    }
  }

  #checkRunning({ sequence, needs, text, gaps }: Running): void {
    if (needs.length === 0) return;
    for (const name of needs) {
      const tokens = sequence.sideTokens(name);
      if (!gaps.has(name) && tokens < sequence.length) throw new Error(`${name}: ${tokens} of ${sequence.length} tokens have rows`);
    }
    const handOver = sequence.handOver();
    try {
      this.#checkRows(handOver, text);
    } finally {
      handOver.close();
    }
  }

  #checkLease({ handOver, text }: Lease): void {
    this.#checkRows(handOver, text);
  }

  #checkRows(handOver: HandOver, text: readonly number[]): void {
    const { tokens } = handOver;
    const hashes = hashesOf(text, '');
    for (const { name, width } of this.#cache.sideTensors) {
      if (!handOver.names.includes(name)) continue;
      const from = this.#random.integer(tokens + 1);
      const rows = readRows(this.#cache, handOver, name, from, tokens);
      for (let at = from; at < tokens; at += 1) checkRow(rows.subarray((at - from) * width, (at - from + 1) * width), hashes[at]!, name, at);
    }
  }
}

/** Rows of the next tokens of each, packed; `noise` makes others of them. */
function rowsOf(added: readonly Added[], name: string, width: number, noise: number): Float32Array {
  const rows = new Float32Array(added.reduce((sum, { tokens }) => sum + tokens, 0) * width);
  let at = 0;
  for (const { running: { sequence, text }, tokens } of added) {
    const hashes = hashesOf(text, '');
    for (let index = 0; index < tokens; index += 1, at += 1) {
      const row = rows.subarray(at * width, (at + 1) * width);
      row.fill(valueOf(hashes[sequence.length + index]!, name) + noise);
    }
  }
  return rows;
}

/** Looks at every 200th element, which is more often than pages end, and the last. */
function checkRow(row: Float32Array, hash: number, name: string, at: number): void {
  const value = valueOf(hash, name);
  for (let element = 0; element < row.length; element += 200) {
    if (row[element] !== value) throw new Error(`element ${element} of token ${at} of ${name} is ${row[element]}, not ${value}`);
  }
  if (row.at(-1) !== value) throw new Error(`the last element of token ${at} of ${name} is ${row.at(-1)}, not ${value}`);
}

function hashesOf(text: readonly number[], tenant: string): number[] {
  let hash = 7 + tenant.length;
  return text.map((token) => hash = mix32(hash, token + 1));
}

function valueOf(hash: number, name: string): number {
  return mix32(hash, name.length) & 0x7f_ffff;
}

function firstMissing(hashes: readonly number[], covered: ReadonlySet<number>): number {
  const missing = hashes.findIndex((hash) => !covered.has(hash));
  return missing < 0 ? hashes.length : missing;
}
