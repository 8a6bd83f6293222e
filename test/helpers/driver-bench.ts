// DriverBench: one open driver in one test. It remembers what the test reserved, created and mapped, takes all of it back
// at the end, and then asks the driver whether anything is left. Calls that a test expects to be refused go to `native`.

import type { ExecutionContext } from 'ava';

import type { NativeDriver, NativeDriverInfo } from '#internal/device/native.js';
import type { DriverDescription, OpenDriver } from './drivers.js';

/** What a refused call must not change. */
interface Counts {
  readonly livePages: number;
  readonly liveReservations: number;
  readonly mappings: number;
  readonly residentBytes: number;
}

export class DriverBench {
  readonly native: NativeDriver;
  readonly info: NativeDriverInfo;
  readonly pageBytes: number;
  readonly #t: ExecutionContext;
  readonly #open: OpenDriver;
  readonly #reservations = new Map<bigint, number>();
  readonly #pages = new Map<bigint, number>();
  readonly #mapped = new Map<bigint, number>();

  constructor(t: ExecutionContext, open: OpenDriver) {
    this.#t = t;
    this.#open = open;
    this.native = open.native;
    this.info = open.native.info();
    this.pageBytes = this.info.granularityBytes;
  }

  /** The address of page `index` of a reservation. */
  at(address: bigint, index: number): bigint {
    return address + BigInt(index * this.pageBytes);
  }

  reserve(pages: number, pageBytes = this.pageBytes): bigint {
    const address = this.native.reserve(pages * pageBytes, pageBytes);
    this.#reservations.set(address, pages * pageBytes);
    return address;
  }

  free(address: bigint): void {
    this.native.freeReservation(address, this.#reservations.get(address)!);
    this.#reservations.delete(address);
  }

  create(near = 0n, pageBytes = this.pageBytes): bigint {
    const page = this.native.createPage(pageBytes, near);
    this.#pages.set(page, pageBytes);
    return page;
  }

  release(page: bigint): void {
    this.native.releasePage(page, this.#pages.get(page)!);
    this.#pages.delete(page);
  }

  map(address: bigint, page: bigint): void {
    this.native.map(address, this.#pages.get(page)!, page);
    this.#mapped.set(address, this.#pages.get(page)!);
  }

  /** Maps the page and gives access to it. */
  place(address: bigint, page: bigint): void {
    this.map(address, page);
    this.native.setAccess(address, this.#pages.get(page)!);
  }

  /** `pages` new pages side by side, with access. */
  fillRun(address: bigint, pages: number): readonly bigint[] {
    const created = Array.from({ length: pages }, (_, index) => this.create(this.at(address, index)));
    created.forEach((page, index) => this.map(this.at(address, index), page));
    this.native.setAccess(address, pages * this.pageBytes);
    return created;
  }

  unmap(address: bigint, pages = 1): void {
    this.native.unmap(address, pages * this.pageBytes);
    for (let index = 0; index < pages; ++index) this.#mapped.delete(this.at(address, index));
  }

  write(to: bigint, ...bytes: readonly number[]): void {
    this.native.write(to, Uint8Array.from(bytes));
  }

  read(from: bigint, bytes: number): readonly number[] {
    const into = new Uint8Array(bytes).fill(0xee);
    this.native.read(into, from);
    return [...into];
  }

  /** Writes one byte to know the page by; nothing where pages hold no bytes. */
  mark(address: bigint, value: number): void {
    if (this.info.hasMemory) this.write(address, value);
  }

  /** The page marked with `value` is at the address, with access. */
  isMarked(address: bigint, value: number): void {
    if (this.info.hasMemory) this.#t.deepEqual(this.read(address, 1), [value]);
  }

  /** Makes the next call of the layer below fail once. */
  failNext(systemCall: string): void {
    this.#open.failNext(systemCall);
  }

  counts(): Counts {
    const { livePages, liveReservations, mappings, residentBytes } = this.native.queryMemory();
    return { livePages, liveReservations, mappings, residentBytes };
  }

  /** `call` throws this code and changes no count. */
  refuses(code: string, call: () => unknown, message?: string): void {
    const before = this.counts();
    this.#t.throws(call, { code }, message);
    this.#t.deepEqual(this.counts(), before, message);
  }

  /** Takes everything back, asserts that nothing is left, and closes the driver. */
  close(): void {
    for (const [address, bytes] of this.#mapped) this.native.unmap(address, bytes);
    for (const page of [...this.#pages.keys()]) this.release(page);
    for (const address of [...this.#reservations.keys()]) this.free(address);
    this.#t.deepEqual(this.counts(), { livePages: 0, liveReservations: 0, mappings: 0, residentBytes: 0 });
    this.#open.close();
  }
}

/** Runs `body` with a driver of its own. The driver is closed in any case, and asked for leaks when `body` succeeded. */
export function withBench(
  t: ExecutionContext, driver: DriverDescription | OpenDriver, body: (bench: DriverBench) => void,
): void {
  const open = 'open' in driver ? driver.open() : driver;
  const bench = new DriverBench(t, open);
  try {
    body(bench);
  } catch (error) {
    open.close();
    throw error;
  }
  bench.close();
}

/** The same for a body that may wait. */
export async function withAwaitedBench(
  t: ExecutionContext, driver: DriverDescription, body: (bench: DriverBench) => unknown,
): Promise<void> {
  const open = driver.open();
  const bench = new DriverBench(t, open);
  try {
    await body(bench);
  } catch (error) {
    open.close();
    throw error;
  }
  bench.close();
}
