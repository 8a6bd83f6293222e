// PhysicalPages: which physical page lies at which address of a simulated device, as its journal of calls tells it; and which
// pages a sequence's tokens lie in. What must be kept can then be counted without asking the cache.

import type { KvCache, Sequence } from 'virtual-kv';
import type { MockDevice } from 'virtual-kv/testing';

export class PhysicalPages {
  readonly #device: MockDevice;
  readonly #cache: KvCache;
  readonly #at = new Map<bigint, bigint>();
  #step = 0;
  #calls = '';

  constructor(device: MockDevice, cache: KvCache) {
    this.#device = device;
    this.#cache = cache;
  }

  /** Hears of the calls since it heard last; the journal must be long enough for those. */
  hear(): void {
    const { foregroundMaps, backgroundMaps, aliasMaps, detachedRows, unmaps, copiedBytes } = this.#cache.metrics;
    const calls = [foregroundMaps, backgroundMaps, aliasMaps, detachedRows, unmaps, copiedBytes].join();
    if (calls === this.#calls) return;
    this.#calls = calls;
    const journal = this.#device.journal();
    if ((journal[0]?.step ?? 0) > this.#step + 1) throw new Error('the journal is too short');
    const page = BigInt(this.#cache.layout.pageBytes);
    for (const { step, call, result, address, bytes, handle } of journal) {
      if (step <= this.#step || result !== 0) continue;
      if (call === 'cuMemMap') this.#at.set(address, handle);
      else if (call === 'cuMemUnmap') for (let at = 0n; at < BigInt(bytes); at += page) this.#at.delete(address + at);
    }
    this.#step = journal.at(-1)?.step ?? this.#step;
  }

  /** Calls `visit` for the pages of rows [from, to) of a slot that starts at these addresses: what is mapped there, or undefined. */
  visit(addresses: readonly bigint[], from: number, to: number, visit: (page: bigint | undefined) => void): void {
    const { layout } = this.#cache;
    const page = BigInt(layout.pageBytes);
    addresses.forEach((start, reservation) => {
      for (let index = layout.pagesIn(reservation, from); index < layout.pagesIn(reservation, to); index += 1) {
        visit(this.#at.get(start + BigInt(index) * page));
      }
    });
  }

  /** Where the sequence's slot starts in each reservation. */
  addressesOf(sequence: Sequence): bigint[] {
    return this.addressesOfSlot(sequence.slot);
  }

  /** Where a slot starts in each reservation. */
  addressesOfSlot(slot: number): bigint[] {
    const { tensors, layout } = this.#cache;
    return layout.reservations.map(({ slotStrideBytes }, reservation) => {
      const { address, offsetBytes } = tensors.find((tensor) => tensor.reservation === reservation)!;
      return address - BigInt(offsetBytes) + BigInt(slot * slotStrideBytes);
    });
  }
}
