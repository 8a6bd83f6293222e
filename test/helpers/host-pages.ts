// HostPages: zeroed memory of the CPU at a known address, of a host driver of its own, that a device's driver can be let copy into and out of.

import { Driver } from 'virtual-kv';

import { nativeOf } from './native-of.js';

const bytes = 2 ** 17;

export class HostPages {
  static readonly bytes = bytes;
  readonly address: bigint;
  readonly #driver = Driver.open('host');
  readonly #page: bigint;

  constructor() {
    const native = nativeOf(this.#driver);
    this.address = native.reserve(bytes, bytes);
    this.#page = native.createPage(bytes, this.address);
    native.map(this.address, bytes, this.#page);
    native.setAccess(this.address, bytes);
  }

  read(from: number, count: number): number[] {
    const into = new Uint8Array(count);
    nativeOf(this.#driver).read(into, this.address + BigInt(from));
    return [...into];
  }

  write(from: number, bytes: readonly number[]): void {
    nativeOf(this.#driver).write(this.address + BigInt(from), Uint8Array.from(bytes));
  }

  close(): void {
    const native = nativeOf(this.#driver);
    native.unmap(this.address, bytes);
    native.releasePage(this.#page, bytes);
    native.freeReservation(this.address, bytes);
    this.#driver.close();
  }
}
