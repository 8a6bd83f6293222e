// WholeWorld: a cache that has everything at once: side tensors with hand-overs, a tier in host memory and one on a disk, tenants,
// namespaces, budgets that change, disks that fail or are damaged, and restarts on the same disk. Every byte of K, V and side tensors
// that can be read is that of its text; nothing is found that was not computed, or was dropped since; what is refused has changed nothing,
// and is refused again. whole-shape.ts draws the cache.

import * as fs from 'node:fs';
import * as path from 'node:path';

import { isKvError, KvCache, type Batch, type Driver, type HandOver, type PromptOptions, type Sequence } from 'virtual-kv';
import type { StoreFaults } from 'virtual-kv/testing';

import type { Random } from '#internal/base/random.js';
import type { DeviceSource } from '../../side/device-source.js';
import { readRows } from '../../side/side-reading.js';
import { checkRows, hashesOf, rowOf } from '../../side/world-rows.js';
import { isCopying } from './copies-under-way.js';
import { dropFromDevice, turn } from './device-index.js';
import { KnownTexts } from './known-texts.js';

const domains: readonly PromptOptions[] = [{}, {}, {}, { tenant: 'a' }, { tenant: 'b' }, { tenant: 'b', salt: 's' }, { adapter: 'l' }];
const namespaces = ['', 'other weights'] as const;
const refusals = ['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT', 'KV_PREFIX_IN_USE', 'KV_WORK_QUEUED'] as const;

interface Running {
  readonly sequence: Sequence;
  readonly needs: readonly string[];
  readonly domain: PromptOptions;
  /** Of its domain and namespace. */
  readonly name: string;
  /** Whether what it computes is cached. */
  isStored: boolean;
  /** Tensors of which some rows were not written: no more can be. */
  readonly gaps: Set<string>;
  text: number[];
}

interface Lease {
  readonly handOver: HandOver;
  readonly running: Running;
  /** Undefined while the sequence runs: its text. */
  text: readonly number[] | undefined;
}

export interface WholeWorldOptions {
  readonly random: Random;
  readonly driver: Driver;
  /** Opens a cache on the disk. */
  readonly open: () => KvCache;
  readonly budgets: readonly number[];
  readonly sideBudgets: readonly number[];
  /** Of the disk tier. */
  readonly directory: string;
  readonly faults: StoreFaults;
  readonly source: DeviceSource;
  /** Whether no mapper works meanwhile, so that counts can be compared. */
  readonly isExact: boolean;
}

export class WholeWorld {
  readonly counts: Record<string, number> = {};
  readonly #options: WholeWorldOptions;
  readonly #random: Random;
  readonly #whole = new AbortController();
  readonly #known = new KnownTexts();
  #cache: KvCache;
  #running: Running[] = [];
  #leases: Lease[] = [];
  #texts: number[][] = [];
  #promoting: Promise<void>[] = [];
  #namespace: string = '';
  #step = 0;
  #isFailing = false;
  /** The budget has changed, and what was in the way of that may still be. */
  #isLowered = false;
  /** Times that text was dropped. */
  #dropped = 0;
  #isDamaged = false;

  constructor(options: WholeWorldOptions) {
    this.#options = options;
    this.#random = options.random;
    this.#cache = options.open();
  }

  get cache(): KvCache {
    return this.#cache;
  }

  /** Signals that calls were given. */
  get signals(): readonly AbortSignal[] {
    return [this.#whole.signal];
  }

  /** Whether the disk was damaged, or failed. */
  get isDamaged(): boolean {
    return this.#isDamaged;
  }

  async operate(): Promise<void> {
    const random = this.#random;
    const running = this.#running[random.integer(this.#running.length)];
    const choice = random.integer(1000);
    if (choice < 5) await this.#restart();
    else if (choice < 12) await this.#drop();
    else if (choice < 17) this.#reset();
    else if (choice < 22) this.#setNamespace();
    else if (choice < 28) this.#damage();
    else if (choice < 36) this.#fail();
    else if (choice < 50) await this.#dropFromDevice();
    else if (choice < 85) this.#promote();
    else if (choice < 105) this.#setBudgets();
    else if (choice < 125) this.#completeStep();
    else if (choice < 165) this.#lookup();
    else if (choice < 175) this.verify();
    else if (running === undefined || choice < 270) this.#acquire();
    else if (choice < 630) this.#compute();
    else if (choice < 680) this.#truncate(running);
    else if (choice < 730) this.#fork(running);
    else if (choice < 830) this.#release(running);
    else if (choice < 900) this.#handOver(running);
    else if (choice < 950) this.#closeLease();
    else this.#checkRunning(running);
    this.#count('operations');
    if (random.chance(0.2)) await turn();
    if (this.#promoting.length > 3) await this.#settlePromotions();
  }

  /** Everything that runs or is handed over has its bytes; the cache's books are right. */
  verify(): void {
    for (const running of this.#running) this.#checkRunning(running, true);
    for (const lease of this.#leases) this.#checkLease(lease, true);
    this.#cache.verify();
  }

  /** Ends all that runs; the cache is left, with what it has cached. */
  async end(): Promise<void> {
    this.#mend();
    this.verify();
    for (const { handOver } of this.#leases.splice(0)) handOver.close();
    for (const { sequence } of this.#running.splice(0)) sequence.release();
    this.#completeStep();
    this.#completeStep();
    this.#options.source.free();
    await this.#settlePromotions();
    await this.#cache.prefixes.tiers!.settled();
  }

  #acquire(): void {
    const random = this.#random;
    const cache = this.#cache;
    const tokens = this.#text();
    const names = cache.sideTensors.map(({ name }) => name);
    const needs = random.chance(0.5) ? names : names.filter(() => random.chance(0.5));
    const domain = this.#domain();
    const caching = random.chance(0.8) ? 'read-write' : (['read', 'write', 'off'] as const)[random.integer(3)]!;
    const isReading = caching === 'read' || caching === 'read-write';
    const found = isReading ? cache.prefixes.lookup({ tokens, needs, ...domain }).cachedTokens : 0;
    const reserve = random.chance(0.5) ? 'prompt' : 'none';
    const priority = random.chance(0.2) ? 7 : 0;
    const sequence = this.#try(`acquire ${tokens.length} tokens`, () => cache.acquire({ tokens, needs, caching, reserve, priority, ...domain }));
    if (sequence === undefined) return this.#makeRoom();
    const running: Running = {
      sequence, needs, domain, name: this.#nameOf(domain), isStored: caching === 'read-write' || caching === 'write', gaps: new Set(), text: tokens.slice(),
    };
    this.#running.push(running);
    this.#count('found tokens', sequence.cachedTokens);
    // A shortage of K and V may cost the end of a match, which has to be copied.
    this.#expect(sequence.cachedTokens <= found, `${sequence.cachedTokens} tokens were acquired where ${found} are cached`);
    this.#expectKnown(sequence.cachedTokens, running.name, tokens, needs, 'acquired');
    this.#checkRunning(running, true);
  }

  /** A pass of some sequences. */
  #compute(): void {
    const random = this.#random;
    const cache = this.#cache;
    const batch = cache.createBatch();
    const added: { readonly running: Running; readonly tokens: number }[] = [];
    for (const running of this.#running.filter(() => random.chance(0.5))) {
      const { sequence, text } = running;
      if (text.length === sequence.length) {
        if (text.length + 4 > cache.layout.maxTokens) continue;
        const more = Array.from({ length: 1 + random.integer(4) }, () => random.integer(3));
        sequence.append(more);
        text.push(...more);
      }
      const tokens = 1 + random.integer(text.length - sequence.length);
      batch.add(sequence, tokens);
      added.push({ running, tokens });
    }
    if (added.length === 0) return;
    const prepare = (): true => {
      cache.prepare(batch);
      return true;
    };
    if (this.#try(`prepare ${added.map(({ tokens }) => tokens).join(' + ')} tokens`, prepare) === undefined) return this.#makeRoom();
    if (random.chance(0.08)) { // what is written and then discarded counts for nothing
      this.#write(added, 1);
      cache.discard(batch);
      if (random.chance(0.5) || this.#try('prepare again', prepare) === undefined) return;
    }
    this.#write(added, 0);
    this.#commit(batch);
    for (const { running } of added) this.#note(running);
  }

  #commit(batch: Batch): void {
    this.#cache.commit(batch, this.#random.chance(0.3) ? { fence: { step: this.#step + 1 + this.#random.integer(2) } } : {});
  }

  /** Writes the new tokens of each; `noise` makes others of them. */
  #write(added: readonly { readonly running: Running; readonly tokens: number }[], noise: number): void {
    for (const { running: { sequence, text, name: domain, needs, gaps }, tokens } of added) {
      const from = sequence.length;
      const hashes = hashesOf(text.slice(0, from + tokens), domain);
      for (let at = from; at < from + tokens; at += 1) this.#cache.stamp(sequence, at, 1, hashes[at]! + noise);
      for (const { name, width } of this.#cache.sideTensors) {
        if (!needs.includes(name) || gaps.has(name)) continue;
        if (noise === 0 && this.#random.chance(0.02)) {
          gaps.add(name);
          continue;
        }
        const rows = new Float32Array(tokens * width);
        for (let at = 0; at < tokens; at += 1) rows.set(rowOf(hashes[from + at]! + noise, name, width), at * width);
        sequence.writeSide(from, { [name]: this.#random.chance(0.2) ? this.#options.source.put(rows) : rows });
      }
    }
  }

  #truncate(running: Running): void {
    const { sequence } = running;
    const tokens = Math.max(0, sequence.length - this.#random.integer(this.#random.chance(0.7) ? 6 : sequence.length + 1));
    sequence.truncate(tokens);
    running.text = running.text.slice(0, tokens);
    for (const name of running.needs) if (sequence.sideTokens(name) === tokens) running.gaps.delete(name);
    this.#checkRunning(running);
  }

  #fork(running: Running): void {
    const sequence = this.#try('fork', () => running.sequence.fork());
    if (sequence === undefined) return this.#makeRoom();
    const fork = { ...running, sequence, gaps: new Set(running.gaps), text: running.text.slice() };
    this.#running.push(fork);
    this.#checkRunning(fork);
  }

  #release(running: Running): void {
    this.#checkRunning(running);
    for (const lease of this.#leases) if (lease.running === running) lease.text = running.text.slice(0, running.sequence.length);
    running.sequence.release(this.#random.chance(0.3) ? { fence: { step: this.#step + 1 + this.#random.integer(2) } } : {});
    this.#running.splice(this.#running.indexOf(running), 1);
  }

  #handOver(running: Running): void {
    if (running.needs.length === 0 || this.#leases.length > 4) return;
    const names = this.#random.chance(0.5) ? undefined : [running.needs[0]!];
    this.#leases.push({ handOver: running.sequence.handOver(names), running, text: undefined });
    this.#count('hand-overs');
  }

  #closeLease(): void {
    const [lease] = this.#leases.splice(this.#random.integer(this.#leases.length), 1);
    if (lease === undefined) return;
    this.#checkLease(lease);
    lease.handOver.close();
  }

  #setBudgets(): void {
    const random = this.#random;
    const { budgets, sideBudgets } = this.#options;
    if (random.chance(0.5)) this.#cache.pool.setBudget(budgets[random.integer(budgets.length)]!);
    else this.#cache.setSideBudget(sideBudgets[random.integer(sideBudgets.length)]!);
    this.#isLowered = true;
    this.#count('budgets');
    this.#cache.verify();
  }

  #lookup(): void {
    const tokens = this.#text();
    const domain = this.#domain();
    const name = this.#nameOf(domain);
    const { prefixes, sideTensors } = this.#cache;
    for (const needs of [[], ...sideTensors.map((tensor) => [tensor.name])]) {
      const { cachedTokens, demotedTokens } = prefixes.lookup({ tokens, needs, ...domain });
      this.#expectKnown(cachedTokens, name, tokens, needs, 'found');
      this.#expectKnown(cachedTokens + demotedTokens, name, tokens, [], 'promised');
    }
  }

  #promote(): void {
    const random = this.#random;
    const { prefixes } = this.#cache;
    const tokens = this.#text();
    const domain = this.#domain();
    const name = this.#nameOf(domain);
    const cancel = random.chance(0.15) ? new AbortController() : undefined;
    const options = { signal: (cancel ?? this.#whole).signal };
    const promoting = random.chance(0.3) ? prefixes.prefetch({ tokens, ...domain }, options)
      : prefixes.promote({ tokens, ...domain, deadlineMs: random.chance(0.1) ? random.integer(2) : undefined, ...options });
    const dropped = this.#dropped;
    const checked = promoting.then(({ cachedTokens, promotedTokens, promotedFrom, end }) => {
      if (dropped === this.#dropped) this.#expectKnown(cachedTokens, name, tokens, [], 'promoted');
      const sum = Object.values(promotedFrom).reduce((total, part) => total + part, 0);
      this.#expect(sum === promotedTokens, `${promotedTokens} tokens promoted, ${sum} by tier`);
      this.#count('promoted tokens', promotedTokens);
      this.#count(`promotion ${end}`);
    }, (error: unknown) => {
      if (!isKvError(error) || !['KV_CLOSED', 'KV_ABORTED'].includes(error.code)) throw error;
      this.#count(error.code);
    });
    checked.catch(() => { /* `settlePromotions` throws it */ });
    this.#promoting.push(checked);
    if (cancel !== undefined) setImmediate(() => { cancel.abort(); });
  }

  async #drop(): Promise<void> {
    const random = this.#random;
    const { prefixes } = this.#cache;
    const domain = this.#domain();
    const isReached = (unreached: readonly string[]): boolean => unreached.length === 0 && !this.#isFailing;
    this.#count('drops');
    this.#dropped += 1;
    if (random.chance(0.6)) {
      const tokens = this.#text();
      const dropping = prefixes.drop({ tokens, ...domain });
      const name = this.#nameOf(domain);
      this.#expect(prefixes.lookup({ tokens: [...tokens, 0], ...domain }).cachedTokens < tokens.length, 'text that is being dropped is found');
      const dropped = this.#running.filter((running) => running.name === name && tokens.every((token, at) => running.text[at] === token));
      for (const running of dropped) running.isStored = false;
      if (isReached((await dropping).unreachedTiers)) this.#known.drop(name, hashesOf(tokens, name));
    } else {
      const part = domain.tenant === undefined ? { namespace: namespaces[random.integer(2)]! } : { tenant: domain.tenant };
      const isOf = (name: string): boolean => {
        const [other, namespace] = JSON.parse(name) as [PromptOptions, string];
        return 'tenant' in part ? other.tenant === part.tenant : namespace === part.namespace;
      };
      const dropping = prefixes.drop(part);
      for (const running of this.#running) if (isOf(running.name)) running.isStored = false;
      if (isReached((await dropping).unreachedTiers)) this.#known.forget(isOf);
    }
    for (const running of this.#running) this.#note(running); // what their texts have in common with it stays
    this.#cache.verify();
  }

  #reset(): void {
    const preempt = this.#random.chance(0.3);
    const done = this.#try('reset', () => {
      this.#cache.prefixes.reset({ preempt });
      return true;
    });
    if (done === undefined) return;
    this.#count('resets');
    this.#dropped += 1;
    for (const running of this.#running.filter(({ sequence }) => sequence.isReleased)) {
      for (const lease of this.#leases) if (lease.running === running) lease.text = running.text;
      this.#running.splice(this.#running.indexOf(running), 1);
    }
    if (!this.#isFailing) this.#known.forget(() => true);
    for (const running of this.#running) this.#note(running);
    this.#cache.verify();
  }

  #setNamespace(): void {
    const namespace = namespaces[this.#random.integer(2)]!;
    this.#cache.prefixes.setNamespace(namespace);
    if (namespace !== this.#namespace) for (const running of this.#running) running.isStored = false;
    this.#namespace = namespace;
    this.#dropped += 1;
  }

  /** Others write to the files of the disk. */
  #damage(): void {
    try {
      this.#writeSomewhere();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error; // a file got its name, or went, meanwhile
    }
  }

  #writeSomewhere(): void {
    const { directory } = this.#options;
    const files = fs.readdirSync(directory, { recursive: true, encoding: 'utf8' }).filter((name) => fs.statSync(path.join(directory, name)).size > 0);
    const name = files.filter((file) => fs.statSync(path.join(directory, file)).isFile())[this.#random.integer(files.length)];
    if (name === undefined) return;
    const file = fs.openSync(path.join(directory, name), 'r+');
    const { size } = fs.fstatSync(file);
    const most = this.#random.chance(0.5) ? Math.min(size, 65_536) : size;
    for (let count = 1 + this.#random.integer(20); count > 0; count -= 1) fs.writeSync(file, Uint8Array.of(this.#random.integer(256)), 0, 1, this.#random.integer(most));
    fs.closeSync(file);
    this.#isDamaged = true;
    this.#count('damages');
  }

  /** The disk fails, or does not any more. */
  #fail(): void {
    if (this.#isFailing) return this.#mend();
    const random = this.#random;
    const nth = 1 + random.integer(10);
    const times = random.chance(0.5) ? 1 : 2 ** 32;
    if (random.chance(0.5)) this.#options.faults.add({ call: 'read', nth, times, flippedBit: random.integer(4096) });
    else this.#options.faults.add({ nth, times, error: (['EIO', 'ENOSPC', 'EINTR'] as const)[random.integer(3)]! });
    this.#isFailing = this.#isDamaged = true;
    this.#count('failures');
  }

  #mend(): void {
    this.#options.faults.clear();
    this.#isFailing = false;
  }

  /** What no sequence uses is in the tiers alone. */
  async #dropFromDevice(): Promise<void> {
    this.#completeStep();
    await this.#settlePromotions();
    await this.#cache.prefixes.tiers!.settled();
    dropFromDevice(this.#cache);
    this.#isLowered = false;
    this.#cache.verify();
  }

  #completeStep(): void {
    this.#step += 1;
    this.#cache.completeStep(this.#step);
  }

  /** The cache ends, in one of the ways that there are, and another opens on the same disk. */
  async #restart(): Promise<void> {
    this.#dropped += 1;
    const random = this.#random;
    const cache = this.#cache;
    const tiers = cache.prefixes.tiers!;
    if (random.chance(0.8)) this.#mend();
    this.verify();
    for (const running of [...this.#running]) if (random.chance(0.7)) this.#release(running);
    for (const lease of this.#leases) if (random.chance(0.7)) lease.handOver.close();
    this.#completeStep();
    this.#completeStep();
    if (random.chance(0.5)) await tiers.settled();
    const way = random.integer(3);
    this.#count(['shutdowns', 'orderly ends', 'closes'][way]!);
    if (way === 0) await cache.shutdown();
    else {
      if (way === 1) await tiers.close();
      cache.close();
      await tiers.close();
    }
    await this.#settlePromotions();
    for (const { handOver } of this.#leases.splice(0)) handOver.close();
    this.#running = [];
    this.#mend();
    this.#options.source.free();
    this.#expectNoMemory();
    if (this.#isDamaged) this.#known.remember(); // the disk may have lost what was dropped
    await this.#open();
    this.#count('restarts');
  }

  /** Opens the next cache; a disk that is not what it was is refused, and moved away. */
  async #open(): Promise<void> {
    const { directory, open } = this.#options;
    this.#step = 0;
    this.#namespace = '';
    this.#cache = open();
    this.#isLowered = false;
    try {
      await this.#cache.prefixes.tiers!.ready();
    } catch (error) {
      if (!this.#isDamaged || !isKvError(error) || !['KV_STORE_FOREIGN', 'KV_STORE_FORMAT'].includes(error.code)) throw error;
      this.#count(error.code);
      await this.#cache.shutdown();
      this.#expectNoMemory();
      fs.rmSync(directory, { recursive: true });
      fs.mkdirSync(directory);
      this.#cache = open();
      await this.#cache.prefixes.tiers!.ready();
    }
  }

  #expectNoMemory(): void {
    const { livePages, liveReservations } = this.#options.driver.memory();
    this.#expect(livePages === 0 && liveReservations === 0, `${livePages} pages and ${liveReservations} reservations are left of a closed cache`);
  }

  #makeRoom(): void {
    const [oldest] = this.#running;
    if (oldest !== undefined && this.#random.chance(0.7)) this.#release(oldest);
    else this.#closeLease();
  }

  /** The call's result; undefined where it was refused, has changed nothing, and is refused again. */
  #try<T>(what: string, call: () => T): T | undefined {
    const isWatched = this.#random.chance(0.7);
    const before = isWatched ? this.#seen() : undefined;
    try {
      return call();
    } catch (error) {
      if (!isKvError(error) || !refusals.some((code) => code === error.code)) throw error;
      this.#count(error.code);
      const after = this.#seen(); // asking changes nothing, either
      if (before !== undefined) {
        this.#expect(after.same === before.same, `${what}: ${error.message}\nbefore ${before.same}\nafter  ${after.same}`);
        const isSame = after.overBound !== before.overBound || after.interrupted !== before.interrupted || after.cached === before.cached;
        this.#expect(isSame, `${what}: ${error.message}\nbefore ${before.cached}\nafter  ${after.cached}`);
        this.#expect(after.admissiblePages >= before.admissiblePages, `${what}: ${error.message}: ${after.admissiblePages} of ${before.admissiblePages} pages are left`);
      }
      if (!this.#options.isExact) return undefined;
      let again: unknown = 'nothing';
      try {
        call();
      } catch (second) {
        again = second;
      }
      this.#expect(isKvError(again, error.code), `${what}: refused, then done: ${error.message}\n${String(again)}`);
      return undefined;
    }
  }

  /**
   * What can be seen of the cache, and what is refused must not change. Admission may find that a running sequence has the same rows as a cached
   * text, and share them: then more is admissible than before. While tiers read rows, what must go for a lower budget or is over a bound stays,
   * and goes in a later call. For want of memory what tiers load is interrupted: what has come of it is cached.
   */
  #seen(): {
    readonly same: string; readonly cached: string; readonly overBound: number; readonly interrupted: number; readonly admissiblePages: number;
  } {
    const cache = this.#cache;
    const { isExact } = this.#options;
    const { idleSlots, activeSlots, retiringSlots, quarantinedSlots, usedTokens, cachedRows, admissiblePages } = cache.counts();
    const { earmarkedPages, budgetPages } = cache.pool.counts();
    // Rows behind its tokens that others have too are unmapped whenever their fence is found to have passed.
    const rowsOf = ({ length, mappedRows }: Sequence): number => Math.min(mappedRows, cache.layout.rowsFor(length));
    const sequences = this.#running.map(({ sequence, needs }) =>
      [sequence.length, isExact ? rowsOf(sequence) : 0, ...needs.map((name) => sequence.sideTokens(name))]);
    const same = JSON.stringify({
      idleSlots, activeSlots, retiringSlots, quarantinedSlots, usedTokens, budgetPages, sequences,
      earmarkedPages: isExact ? earmarkedPages : 0, // a mapper maps what is set aside
    });
    const { evicted, bound, quota } = cache.prefixes.metrics.droppedRows;
    const cached = isCopying() || this.#isLowered ? '' : JSON.stringify([cachedRows, evicted, cache.sideCounts()]);
    const interrupted = cache.prefixes.tiers!.metrics().interruptedTransfers;
    return { same, cached, overBound: bound + quota, interrupted, admissiblePages: isExact ? admissiblePages : Infinity };
  }

  /** A text that begins like one before. */
  #text(): number[] {
    const random = this.#random;
    const most = this.#cache.layout.maxTokens - 4;
    const known = this.#texts.length > 0 && random.chance(0.85) ? this.#texts[random.integer(this.#texts.length)]! : [];
    const shared = random.chance(0.5) ? known.length : random.integer(known.length + 1);
    const added = random.integer(random.chance(0.3) ? most : 8);
    const text = [...known.slice(0, shared), ...Array.from({ length: added }, () => random.integer(3)), 1].slice(0, most);
    this.#texts[this.#texts.length < 12 ? this.#texts.length : random.integer(12)] = text;
    return text.slice();
  }

  #domain(): PromptOptions {
    return domains[this.#random.integer(domains.length)]!;
  }

  #nameOf(domain: PromptOptions): string {
    return JSON.stringify([domain, this.#namespace]);
  }

  /** What the sequence has computed may be found. */
  #note({ sequence, text, needs, isStored, name }: Running): void {
    if (!isStored) return;
    const hashes = hashesOf(text.slice(0, sequence.length), name);
    this.#known.note(name, '', hashes);
    for (const tensor of needs) this.#known.note(name, tensor, hashes.slice(0, sequence.sideTokens(tensor)));
  }

  #expectKnown(tokens: number, name: string, text: readonly number[], needs: readonly string[], what: string): void {
    const most = this.#known.tokens(name, hashesOf(text, name), needs);
    this.#expect(tokens <= most, `${tokens} tokens are ${what} with [${needs.join()}], and ${most} were ever there, or were not dropped`);
  }

  /** @param isThorough Whether all tokens are compared, and not a few only. */
  #checkRunning({ sequence, needs, text, gaps, name: domain }: Running, isThorough = false): void {
    const hashes = hashesOf(text, domain);
    const step = isThorough ? 1 : 1 + this.#random.integer(8);
    for (let at = 0; at < sequence.length; at += step) {
      if (this.#cache.verifyStamp(sequence, at, 1, hashes[at]!) !== 0) throw new Error(`K or V of token ${at} are not those of the text`);
    }
    for (const name of needs) this.#expect(gaps.has(name) || sequence.sideTokens(name) === sequence.length, `${name} lacks rows`);
    if (needs.length === 0) return;
    const handOver = sequence.handOver();
    try {
      this.#checkRows(handOver, hashes, isThorough);
    } finally {
      handOver.close();
    }
  }

  #checkLease({ handOver, text, running }: Lease, isThorough = false): void {
    this.#expect(handOver.isComplete === (text !== undefined), 'a hand-over is complete from its sequence\'s release on, and not before');
    this.#checkRows(handOver, hashesOf(text ?? running.text, running.name), isThorough);
  }

  #checkRows(handOver: HandOver, hashes: readonly number[], isThorough: boolean): void {
    const { tokens } = handOver;
    for (const { name, width } of this.#cache.sideTensors) {
      if (!handOver.names.includes(name)) continue;
      const from = isThorough ? 0 : this.#random.integer(tokens + 1);
      checkRows(readRows(this.#cache, handOver, name, from, tokens), { hashes: hashes.slice(from, tokens), tensor: name, width, from });
    }
  }

  async #settlePromotions(): Promise<void> {
    await Promise.all(this.#promoting.splice(0));
  }

  #count(what: string, count = 1): void {
    this.counts[what] = (this.counts[what] ?? 0) + count;
  }

  #expect(condition: boolean, problem: string): void {
    if (!condition) throw new Error(problem);
  }
}

