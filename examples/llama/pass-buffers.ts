// PassBuffers: the activations of a pass, by name: Float32Arrays on host, addresses of memory of their own on a device. Made for
// the largest pass so far and reused. Growing loses a buffer's content, so it may grow only where a pass begins to use it.

import { DeviceMemory, type Driver, type FloatBuffer } from 'virtual-kv';

export class PassBuffers {
  readonly #driver: Driver;
  readonly #arrays = new Map<string, Float32Array>();
  readonly #memories = new Map<string, DeviceMemory>();
  /** By name, the table that its memory holds. */
  readonly #written = new Map<string, Float32Array>();

  constructor(driver: Driver) {
    this.#driver = driver;
  }

  /** A buffer of at least `elements` floats. */
  floats(name: string, elements: number): FloatBuffer {
    return this.#driver.kind === 'host' ? this.#array(name, elements) : this.#memory(name, elements).address;
  }

  /** Puts a table where the pass can read it. It must not change, but another table may replace it. */
  table(name: string, values: Float32Array): FloatBuffer {
    if (this.#driver.kind === 'host') return values;
    const memory = this.#memory(name, values.length);
    if (this.#written.get(name) !== values) memory.write(values);
    this.#written.set(name, values);
    return memory.address;
  }

  /** Waits for all queued work and reads the first floats of a buffer, into the same array every time; it may be longer. */
  read(name: string, elements: number): Float32Array {
    const array = this.#array(name, elements);
    this.#memories.get(name)?.read(array.subarray(0, elements));
    return array;
  }

  /** Waits for all queued work. */
  finish(): void {
    for (const memory of this.#memories.values()) return memory.read(new Uint8Array(0));
  }

  close(): void {
    for (const memory of this.#memories.values()) memory.close();
    this.#memories.clear();
  }

  #array(name: string, elements: number): Float32Array {
    const held = this.#arrays.get(name);
    if (held !== undefined && held.length >= elements) return held;
    const array = new Float32Array(elements);
    this.#arrays.set(name, array);
    return array;
  }

  #memory(name: string, elements: number): DeviceMemory {
    const held = this.#memories.get(name);
    if (held !== undefined && held.bytes >= 4 * elements) return held;
    held?.close();
    this.#memories.delete(name);
    this.#written.delete(name);
    const memory = new DeviceMemory({ driver: this.#driver, bytes: 4 * Math.max(1, elements) });
    this.#memories.set(name, memory);
    return memory;
  }
}
