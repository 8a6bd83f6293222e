// StoreCalls: the calls of one native store that are under way, each with the promise that its answer settles, and the
// memory that must live until then. Owns the native store's lifetime: it is stopped when it was closed, could not be
// opened, or was collected.

import { native } from '../device/native.js';
import type { NativeStore, NativeStoreFaults, NativeStoreOptions } from '../device/native-store.js';

/** What a call was answered. */
export interface StoreAnswer {
  readonly numbers: Float64Array;
  readonly bytes: Uint8Array;
}

interface Waiting {
  readonly resolve: (answer: StoreAnswer) => void;
  readonly reject: (error: Error) => void;
  /** Kept from being collected, and with it the store. */
  readonly holds: unknown;
}

export class StoreCalls {
  readonly native: NativeStore;
  /** Names its directory and namespace. */
  readonly place: string;
  readonly #waiting: Map<number, Waiting>;
  #lastId = 0;

  /**
   * @param lost Hears of blocks whose sync was refused, their keys one behind the other. Must not refer to what is to
   * be collected.
   */
  constructor(options: NativeStoreOptions, lost: (keys: Uint8Array) => void, faults: NativeStoreFaults | undefined) {
    this.place = `${Buffer.from(options.namespace).toString('hex')} ${options.directory}`;
    const waiting = this.#waiting = new Map<number, Waiting>();
    // Must not refer to this object: the addon keeps the function as long as the store.
    this.native = new (native().NativeStore)(options, (id, error, numbers, bytes) => {
      if (id === 0) return lost(bytes);
      const call = waiting.get(id);
      waiting.delete(id);
      if (error === undefined) call?.resolve({ numbers, bytes });
      else call?.reject(error);
    }, faults);
  }

  /** Makes a call with an id; `holds` lives until it is answered. */
  ask(holds: unknown, begin: (id: number) => void): Promise<StoreAnswer> {
    const id = ++this.#lastId;
    begin(id);
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, holds: [this, holds] });
    });
  }
}
