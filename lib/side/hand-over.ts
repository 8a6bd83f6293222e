// HandOver: a lease on what a sequence has written to its side tensors, for the next stage. It reads by position,
// follows the sequence while that runs, and keeps the rows after it was released, whatever is evicted or used again.

import { createError } from '../base/errors.js';
import { checkInteger, notConstructible } from '../base/options.js';
import type { SideView } from '../base/dtypes.js';
import { unclosed } from '../device/weak-users.js';
import type { SideTensor } from './side-tensor.js';
import { SideTensors } from './side-tensors.js';

/** Rows of side tensors, by position. Made by `Sequence.handOver`; close it when they were read. */
export class HandOver {
  /** Names of its tensors. */
  readonly names: readonly string[];
  readonly #side: SideTensors;
  readonly #slot: number;
  readonly #sideSlot: number;
  /** Its tensors. */
  readonly #bits: number;
  readonly #tensors: readonly SideTensor[];
  readonly #byName: ReadonlyMap<string, SideTensor>;
  #isClosed = false;

  /** @param tensors As bits. @internal Use `sequence.handOver`. */
  constructor(side: SideTensors, slot: number, tensors: number) {
    if (!SideTensors.isInstance(side)) throw notConstructible('HandOver', 'sequence.handOver');
    this.#side = side;
    this.#slot = slot;
    this.#sideSlot = side.sideSlots.of[slot]!;
    const named = side.names.of(tensors);
    this.#tensors = named.tensors;
    this.names = named.names;
    this.#byName = named.byName;
    side.lease(this.#sideSlot, tensors);
    this.#bits = tensors;
    const sideSlot = this.#sideSlot;
    unclosed.register(this, {
      what: 'A HandOver',
      giveBack: () => {
        side.endLease(sideSlot, tensors);
      },
    }, this);
  }

  /** Tokens whose rows can be read, in all its tensors: those that were committed. It grows while the sequence runs. */
  get tokens(): number {
    this.#check('read');
    return this.#readable;
  }

  get #readable(): number {
    let least = this.#committed;
    for (let index = 0; index < this.#tensors.length; index += 1) {
      least = Math.min(least, this.#tensors[index]!.writes.written[this.#sideSlot]!);
    }
    return least;
  }

  /**
   * Of `tokens`, those that are there: where rows come from the device, `rows` beyond them waits until their copy is
   * over.
   */
  get arrivedTokens(): number {
    const { tokens } = this;
    this.#side.pollCopies();
    return this.#tensors.reduce((least, { writes }) => Math.min(least, writes.arrived[this.#sideSlot]!), tokens);
  }

  /** Whether the sequence was released: no more tokens come. */
  get isComplete(): boolean {
    return this.#side.sideSlots.finalTokens[this.#sideSlot]! >= 0;
  }

  /** Whether `close` was called: nothing of it can be read any more. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Rows [from, to) of a tensor (default: all), [to − from, width], as a typed array over the memory itself: `float32`
   * as a Float32Array, `float16` and `bfloat16` as a Uint16Array of their bits, `float8` as a Uint8Array, `int8` and
   * `int32` as an Int8Array and an Int32Array. Cached rows and those that were computed are one piece. For reading
   * only: a write would change what is cached. The first look at a sequence's rows is a copy where it is at most 32
   * KiB, which is there without a page fault. An array is detached (length 0) when the hand-over is closed, or the
   * sequence is truncated before `to`; then ask again. A short range is the cheaper one: a view of more than 64 MiB
   * makes V8 collect garbage. Throws KV_SIDE_STATE, KV_INVALID_OPTION, KV_DRIVER_UNSUPPORTED for a tensor on another
   * device.
   */
  rows(name: string, from = 0, to?: number): Readonly<SideView> {
    const tensor = this.#named('HandOver.rows', name);
    const tokens = this.#readable;
    const end = to === undefined ? tokens : to;
    checkInteger('HandOver.rows', 'to', end, 0, tokens, 'These are the tokens that were committed with their rows.');
    checkInteger('HandOver.rows', 'from', from, 0, end);
    this.#side.handed(this.#sideSlot, end);
    this.#side.copies.waitFor(tensor.writes.number, this.#sideSlot, end);
    return tensor.views.view(this.#sideSlot, from, end);
  }

  /**
   * Address of token 0 of a tensor, for kernels: [token, width], without gaps. It stays the same until the hand-over is
   * closed.
   */
  address(name: string): bigint {
    return this.#named('HandOver.address', name).views.address(this.#sideSlot);
  }

  /** Its rows may be evicted and their memory used again. Idempotent. Throws KV_POLICY_REENTRY in a policy. */
  close(): void {
    if (this.#isClosed) return;
    this.#side.checkUndecided('close a hand-over');
    this.#isClosed = true;
    unclosed.unregister(this);
    this.#side.endLease(this.#sideSlot, this.#bits);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  get #committed(): number {
    const final = this.#side.sideSlots.finalTokens[this.#sideSlot]!;
    return final >= 0 ? final : this.#side.slots.length[this.#slot]!;
  }

  #named(owner: string, name: string): SideTensor {
    this.#check('read');
    const tensor = this.#byName.get(name);
    if (tensor !== undefined) return tensor;
    this.#side.names.named(owner, 'name', name);
    throw createError('KV_SIDE_STATE', {
      operation: 'read', sideTensor: name, problem: 'it is not part of this hand-over',
      hint: 'Name it in `sequence.handOver([…])`.',
    });
  }

  #check(operation: string): void {
    this.#side.checkOpen(operation);
    if (!this.#isClosed) return;
    throw createError('KV_SIDE_STATE', {
      operation, sideTensor: this.names.join(', '), problem: 'the hand-over was closed',
      hint: 'Copy what is needed before `close()`.',
    });
  }
}
