// DeviceSource: rows of an engine on a device, each pass in memory of its own, so that copies of earlier passes may still be under way.

import { DeviceMemory, type Driver } from 'virtual-kv';

export class DeviceSource {
  readonly #driver: Driver;
  readonly #memories: DeviceMemory[] = [];
  /** What the engine computes on. */
  stream: bigint | undefined;

  constructor(driver: Driver) {
    this.#driver = driver;
  }

  /** The rows, somewhere in memory of the driver. */
  put(rows: Float32Array): { memory: DeviceMemory | bigint; atByte: number; stream: bigint | undefined } {
    const atByte = 256;
    const memory = new DeviceMemory({ driver: this.#driver, bytes: atByte + Math.max(rows.byteLength, 4) });
    this.#memories.push(memory);
    memory.write(rows, atByte);
    const isNamed = this.#memories.length % 2 === 0;
    return { memory: isNamed ? memory : memory.address, atByte, stream: this.stream };
  }

  putAll(rows: Readonly<Record<string, Float32Array>>): Record<string, ReturnType<DeviceSource['put']>> {
    return Object.fromEntries(Object.entries(rows).map(([name, one]) => [name, this.put(one)]));
  }

  /** Frees them; nothing reads them any more. */
  free(): void {
    for (const memory of this.#memories.splice(0)) memory.close();
  }
}
