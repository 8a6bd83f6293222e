// DeviceRows: rows of a step in memory of a device (mock or cuda), as an engine on a GPU has them: one mapped stretch that
// inputs are written to and outputs read from, through the driver.

import type { Driver, RowBuffer } from 'virtual-kv';

import { nativeOf } from './native-of.js';

const alignment = 256;

export class DeviceRows {
  readonly #driver: Driver;
  readonly #pageBytes: number;
  #address = 0n;
  #pages: bigint[] = [];

  constructor(driver: Driver, pageBytes: number) {
    this.#driver = driver;
    this.#pageBytes = pageBytes;
  }

  /** Calls with addresses of the inputs and outputs, and reads the outputs back when the work is done. */
  run(
    inputs: readonly (Float32Array | Uint16Array)[], outputs: readonly (Float32Array | Uint16Array)[],
    call: (inputs: RowBuffer[], outputs: RowBuffer[]) => void, stream = 0n,
  ): void {
    const native = nativeOf(this.#driver);
    let bytes = 0;
    const places = [...inputs, ...outputs].map((rows) => {
      const at = bytes;
      bytes += Math.ceil(Math.max(1, rows.byteLength) / alignment) * alignment;
      return at;
    });
    this.#grow(bytes);
    const addresses = places.map((at) => this.#address + BigInt(at));
    inputs.forEach((rows, index) => native.write(addresses[index]!, bytesOf(rows)));
    call(addresses.slice(0, inputs.length), addresses.slice(inputs.length));
    native.synchronizeStream(stream);
    outputs.forEach((rows, index) => native.read(bytesOf(rows), addresses[inputs.length + index]!));
  }

  close(): void {
    const native = nativeOf(this.#driver);
    if (this.#pages.length === 0) return;
    const bytes = this.#pages.length * this.#pageBytes;
    native.unmap(this.#address, bytes);
    for (const page of this.#pages) native.releasePage(page, this.#pageBytes);
    native.freeReservation(this.#address, bytes);
    this.#pages = [];
  }

  #grow(bytes: number): void {
    const pages = Math.ceil(bytes / this.#pageBytes);
    if (pages <= this.#pages.length) return;
    this.close();
    const native = nativeOf(this.#driver);
    this.#address = native.reserve(pages * this.#pageBytes, this.#pageBytes);
    for (let index = 0; index < pages; index += 1) {
      const page = native.createPage(this.#pageBytes, 0n);
      native.map(this.#address + BigInt(index * this.#pageBytes), this.#pageBytes, page);
      this.#pages.push(page);
    }
    native.setAccess(this.#address, pages * this.#pageBytes);
  }
}

function bytesOf(rows: Float32Array | Uint16Array): Uint8Array {
  return new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
}
