// RowsAhead: asks the mapper for the rows that the growth policy wants ahead of running sequences, so that their next
// steps find them mapped.

import { createError } from '../base/errors.js';
import { checkStack } from '../base/stack.js';
import type { PolicyGuard } from '../device/policy-guard.js';
import type { Batch } from './batch.js';
import type { GrowthPolicy } from './memory-policies.js';
import type { RowSupply } from './row-supply.js';
import type { SlotMemory } from './slot-memory.js';
import { noForeignRow, type Slots } from './slots.js';

export class RowsAhead {
  readonly #memory: SlotMemory;
  readonly #slots: Slots;
  readonly #supply: RowSupply;
  readonly #growth: GrowthPolicy;
  readonly #guard: PolicyGuard;
  /** Slots and the rows that each is to have, for the addon. */
  readonly #pairs: Int32Array;
  readonly #hasMapper: boolean;
  /** Whether some slots are there for transfers. */
  readonly #hasTransfers: boolean;
  /** Whether the mapper was asked for anything by the latest request. Read only. */
  hasRequests = false;

  constructor(memory: SlotMemory, supply: RowSupply, growth: GrowthPolicy, hasMapper: boolean) {
    this.#hasMapper = hasMapper;
    this.#memory = memory;
    this.#slots = memory.slots;
    this.#supply = supply;
    this.#growth = growth;
    this.#guard = memory.pool.guard;
    this.#pairs = new Int32Array(2 * memory.slots.count);
    this.#hasTransfers = memory.slots.count > memory.slots.sequences;
  }

  /**
   * For every sequence of a batch that was not released. Throws what the policy throws, and KV_INVALID_OPTION for what
   * it returns.
   */
  request(batch: Batch): void {
    const { slots, generations, length } = batch;
    let requests = 0;
    const { generation } = this.#slots;
    const outer = this.#guard.enter('growth');
    try {
      for (let index = 0; index < length; index += 1) {
        const slot = slots[index]!;
        if (generation[slot] === generations[index] && this.#note(slot, requests)) requests += 1;
      }
    } finally {
      this.#guard.leave(outer);
    }
    this.#send(requests);
  }

  /** For one slot. Throws as `request`. */
  requestFor(slot: number): void {
    this.#send(this.#guard.during('growth', () => this.#note(slot, 0)) ? 1 : 0);
  }

  /** Puts a request for the slot into the pairs at `index` if the growth policy wants more than is mapped. */
  #note(slot: number, index: number): boolean {
    const numbers = this.#slots;
    if (this.#hasTransfers && numbers.isTransfer(slot)) return false;
    const lengthTokens = numbers.length[slot]!;
    const wanted = this.#growth(lengthTokens, numbers.earmarkedTokens[slot]!);
    if (typeof wanted !== 'number' || Number.isNaN(wanted)) throw notTokens(wanted);
    if (wanted <= lengthTokens) return false; // nothing ahead: before the work below, for each token of each sequence
    const tokens = Math.min(Math.ceil(wanted), this.#memory.layout.maxTokens);
    if (numbers.hasRoom(slot, tokens) || numbers.foreignRow[slot] !== noForeignRow) return false;
    this.#pairs[2 * index] = slot;
    this.#pairs[2 * index + 1] = this.#memory.layout.rowsFor(tokens);
    return true;
  }

  #send(count: number): void {
    this.hasRequests = count > 0;
    if (count === 0) return;
    let pages = 0;
    for (let index = 0; index < count; index += 1) {
      const slot = this.#pairs[2 * index]!;
      const rows = this.#pairs[2 * index + 1]!;
      pages += this.#slots.missingPages(slot, rows) - this.#slots.earmarkedPages(slot, rows); // those are set aside
    }
    if (pages > 0 && this.#hasMapper) this.#memory.late.attempt(() => {
      checkStack();
      this.#supply.makeFree(pages);
    });
    this.#memory.native.request(this.#pairs, count);
  }
}

function notTokens(received: unknown): Error {
  return createError('KV_INVALID_OPTION', {
    reason: typeof received === 'number' ? 'range' : 'type', owner: 'KvCache', option: 'growth', received,
    isReturned: true,
    expected: 'a function that returns a number of tokens',
  });
}
