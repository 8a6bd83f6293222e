// DeviceFloats: arrays of a test in memory of a device, each in a place of its own; written there, and read back when asked.

import { DeviceMemory, type Driver } from 'virtual-kv';

const alignment = 256;

export class DeviceFloats {
  readonly #memory: DeviceMemory;
  #used = 0;

  constructor(driver: Driver, bytes = 2 ** 22) {
    this.#memory = new DeviceMemory({ driver, bytes });
  }

  /** The address of a copy of the array, `shiftBytes` behind a line of memory. */
  put(array: Float32Array | Uint16Array, shiftBytes = 0): bigint {
    const at = this.#used + shiftBytes;
    this.#memory.write(array, at);
    this.#used = Math.ceil((at + array.byteLength + 1) / alignment) * alignment;
    return this.#memory.address + BigInt(at);
  }

  read(address: bigint, length: number): Float32Array {
    return this.readInto(address, new Float32Array(length));
  }

  readInto<Rows extends Float32Array | Uint16Array>(address: bigint, rows: Rows): Rows {
    this.#memory.read(rows, Number(address - this.#memory.address));
    return rows;
  }

  close(): void {
    this.#memory.close();
  }
}
