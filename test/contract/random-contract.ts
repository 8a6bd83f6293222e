// The contract under a long random run: any order of calls, right and wrong ones, against a model that is a few maps. The
// seed is logged and can be given: VKV_TEST_SEED=7.

import type { ExecutionContext } from 'ava';

import { Random } from '#internal/base/random.js';
import type { DriverBench } from '../helpers/driver-bench.js';
import { seedOf } from '../helpers/seed.js';
import type { ContractTest } from './driver-contract.js';

const RESERVATIONS = 3;
const PAGES_EACH = 12;
const MOST_PAGES = 24;
const STEPS = 1500;

/** What the model knows of one page: the first and last byte, once they were written. */
interface ModelPage {
  maps: number;
  first: number | undefined;
  last: number | undefined;
}

interface ModelPlace {
  readonly page: bigint;
  hasAccess: boolean;
}

export function randomContract(contractTest: ContractTest): void {
  contractTest('a long random run agrees with the model', ['memory', 'page handle check', 'access check'], (t, bench) => {
    const run = new RandomRun(t, bench, seedOf('contract'));
    for (let step = 0; step < STEPS; ++step) run.step();
    run.compareAll();
  });
}

class RandomRun {
  readonly #t: ExecutionContext;
  readonly #bench: DriverBench;
  readonly #random: Random;
  readonly #bases: readonly bigint[];
  readonly #pages = new Map<bigint, ModelPage>();
  readonly #places = new Map<bigint, ModelPlace>();
  readonly #steps: readonly (() => void)[] = [
    () => this.#createAndPlace(), () => this.#map(), () => this.#map(), () => this.#setAccess(), () => this.#unmap(),
    () => this.#release(), () => this.#write(), () => this.#write(), () => this.#fillOrCopy(), () => this.#read(),
  ];

  constructor(t: ExecutionContext, bench: DriverBench, seed: number) {
    this.#t = t;
    this.#bench = bench;
    this.#random = new Random(seed);
    this.#bases = Array.from({ length: RESERVATIONS }, () => bench.reserve(PAGES_EACH));
    t.log(`VKV_TEST_SEED=${seed}`);
  }

  step(): void {
    this.#pick(this.#steps)();
  }

  compareAll(): void {
    for (const [address, place] of this.#places) {
      if (place.hasAccess) this.#compare(address, place);
    }
    this.#t.is(this.#bench.counts().livePages, this.#pages.size);
  }

  #createAndPlace(): void {
    if (this.#pages.size === MOST_PAGES) return;
    const address = this.#address();
    const page = this.#bench.create(this.#random.chance(0.7) ? address : 0n);
    this.#t.false(this.#pages.has(page), 'a live handle is not given twice');
    this.#pages.set(page, { maps: 0, first: undefined, last: undefined });
    if (!this.#places.has(address)) this.#place(address, page);
  }

  #map(): void {
    const page = this.#anyPage();
    const address = this.#address();
    if (page === undefined) return;
    if (this.#places.has(address)) {
      this.#refuses('KV_DRIVER_MISUSE', () => this.#bench.native.map(address, this.#bench.pageBytes, page));
    } else {
      this.#bench.map(address, page);
      this.#places.set(address, { page, hasAccess: false });
      this.#pages.get(page)!.maps += 1;
    }
  }

  #setAccess(): void {
    const { address, bytes, places } = this.#run();
    if (places.includes(undefined)) {
      this.#refuses('KV_DRIVER_MISUSE', () => this.#bench.native.setAccess(address, bytes));
    } else {
      this.#bench.native.setAccess(address, bytes);
      for (const place of places) place!.hasAccess = true;
    }
  }

  #unmap(): void {
    const { address, bytes, places } = this.#run();
    if (places.includes(undefined)) {
      this.#refuses('KV_DRIVER_MISUSE', () => this.#bench.native.unmap(address, bytes));
      return;
    }
    this.#bench.unmap(address, places.length);
    places.forEach((place, index) => {
      this.#pages.get(place!.page)!.maps -= 1;
      this.#places.delete(this.#bench.at(address, index));
    });
  }

  #release(): void {
    const page = this.#anyPage();
    if (page === undefined || this.#pages.get(page)!.maps > 0) return;
    this.#bench.release(page);
    this.#pages.delete(page);
    this.#refuses('KV_DRIVER_MISUSE', () => this.#bench.native.releasePage(page, this.#bench.pageBytes));
  }

  /** Two bytes, one at each side of the border between this page and the one before. */
  #write(): void {
    const address = this.#address(1);
    const [before, after] = [this.#usable(this.#bench.at(address, -1)), this.#usable(address)];
    const [last, first] = [this.#random.integer(256), this.#random.integer(256)];
    if (before === undefined || after === undefined) {
      this.#refuses('KV_COPY_OUT_OF_RANGE', () => this.#bench.write(address - 1n, last, first));
      return;
    }
    this.#bench.write(address - 1n, last, first);
    before.last = last;
    after.first = first;
  }

  #fillOrCopy(): void {
    const { native, pageBytes } = this.#bench;
    const [to, from] = [this.#address(), this.#address()];
    const [target, source] = [this.#usable(to), this.#usable(from)];
    if (target === undefined || source === undefined) {
      this.#refuses('KV_COPY_OUT_OF_RANGE', () => native.copy(to, from, pageBytes, 0n));
    } else if (target === source) {
      const value = this.#random.integer(256);
      native.fill(to, value, pageBytes, 0n);
      Object.assign(target, { first: value, last: value });
    } else {
      native.copy(to, from, pageBytes, 0n);
      Object.assign(target, { first: source.first, last: source.last });
    }
    native.synchronizeStream(0n);
  }

  #read(): void {
    const address = this.#address();
    const place = this.#places.get(address);
    if (place?.hasAccess === true) this.#compare(address, place);
    else this.#refuses('KV_COPY_OUT_OF_RANGE', () => this.#bench.read(address, 1));
  }

  #compare(address: bigint, { page }: ModelPlace): void {
    const { first, last } = this.#pages.get(page)!;
    if (first !== undefined) this.#t.is(this.#bench.read(address, 1)[0], first);
    if (last !== undefined) this.#t.is(this.#bench.read(this.#bench.at(address, 1) - 1n, 1)[0], last);
  }

  #place(address: bigint, page: bigint): void {
    this.#bench.place(address, page);
    this.#places.set(address, { page, hasAccess: true });
    this.#pages.get(page)!.maps += 1;
  }

  #refuses(code: string, call: () => void): void {
    this.#t.throws(call, { code });
  }

  /** The page that can be used at this address. */
  #usable(address: bigint): ModelPage | undefined {
    const place = this.#places.get(address);
    return place?.hasAccess === true ? this.#pages.get(place.page) : undefined;
  }

  /** Of any page, leaving out the first `skip` of a reservation. */
  #address(skip = 0): bigint {
    return this.#bench.at(this.#pick(this.#bases), skip + this.#random.integer(PAGES_EACH - skip));
  }

  /** One page, or a few side by side. */
  #run(): { readonly address: bigint; readonly bytes: number; readonly places: readonly (ModelPlace | undefined)[] } {
    const first = this.#random.integer(PAGES_EACH);
    const pages = 1 + this.#random.integer(Math.min(3, PAGES_EACH - first));
    const address = this.#bench.at(this.#pick(this.#bases), first);
    const places = Array.from({ length: pages }, (_, index) => this.#places.get(this.#bench.at(address, index)));
    return { address, bytes: pages * this.#bench.pageBytes, places };
  }

  #anyPage(): bigint | undefined {
    return this.#pages.size === 0 ? undefined : this.#pick([...this.#pages.keys()]);
  }

  #pick<T>(from: readonly T[]): T {
    return from[this.#random.integer(from.length)]!;
  }
}
