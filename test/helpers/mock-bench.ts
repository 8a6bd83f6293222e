// MockBench: one simulated device with small pages, one driver over it, and a reservation to map in; what most tests of the
// mock begin with. A test that leaves it dirty on purpose does not call `end`.

import { MockDevice, type MockDeviceOptions } from 'virtual-kv/testing';

import type { NativeDriver } from '#internal/device/native.js';
import { nativeOf } from './native-of.js';

export const pageBytes = 65_536;
export const reservedPages = 16;

export class MockBench {
  readonly device: MockDevice;
  readonly native: NativeDriver;
  readonly base: bigint;
  readonly #pages: bigint[] = [];
  readonly #mapped = new Set<number>();

  constructor(options: MockDeviceOptions = {}) {
    this.device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 64 * pageBytes, ...options });
    this.native = nativeOf(this.device.driver);
    this.base = this.native.reserve(reservedPages * pageBytes, pageBytes);
  }

  at(page: number): bigint {
    return this.base + BigInt(page * pageBytes);
  }

  create(): bigint {
    const page = this.native.createPage(pageBytes, 0n);
    this.#pages.push(page);
    return page;
  }

  /** Maps a page, by default a new one, and gives access. */
  map(at: number, page = this.create()): bigint {
    this.native.map(this.at(at), pageBytes, page);
    this.native.setAccess(this.at(at), pageBytes);
    this.#mapped.add(at);
    return page;
  }

  unmap(at: number): void {
    this.native.unmap(this.at(at), pageBytes);
    this.#mapped.delete(at);
  }

  read(address: bigint, bytes: number): number[] {
    const into = new Uint8Array(bytes);
    this.native.read(into, address);
    return [...into];
  }

  /** Gives everything back, asserts that nothing leaked, and closes. */
  end(): void {
    for (const at of this.#mapped) this.native.unmap(this.at(at), pageBytes);
    for (const page of this.#pages) this.native.releasePage(page, pageBytes);
    this.native.freeReservation(this.base, reservedPages * pageBytes);
    this.device[Symbol.dispose]();
  }
}
