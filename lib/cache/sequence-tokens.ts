// SequenceTokens: what the running sequences say, slot by slot: the tokens known so far, whether computed yet or not,
// and the path in the prefix index of those that are. Only slots whose request gave its tokens have them. Commits are
// collected: the index hears of them at the next `flush`, so a decode step costs it nothing.

import { enlarged } from '../base/typed-arrays.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { PrefixPath } from '../prefix/prefix-tree.js';
import type { TextScope } from '../prefix/domain.js';
import type { SideTensors } from '../side/side-tensors.js';
import type { RowRegistry } from './row-registry.js';
import { type SlotMemory, slotStates } from './slots.js';

export interface KnownTokens {
  readonly path: PrefixPath;
  /** The first `count` entries count. */
  buffer: Int32Array;
  count: number;
}

export class SequenceTokens {
  readonly #memory: SlotMemory;
  readonly #registry: RowRegistry;
  readonly #index: PrefixIndex;
  readonly #side: SideTensors;
  readonly #bySlot: (KnownTokens | undefined)[];
  /** Slots that have committed tokens which the index has not heard of. */
  readonly #waiting: Int32Array;
  readonly #isWaiting: Uint8Array;
  #waitingCount = 0;

  constructor(memory: SlotMemory, registry: RowRegistry, index: PrefixIndex, side: SideTensors) {
    const { slots: { count } } = memory;
    this.#memory = memory;
    this.#registry = registry;
    this.#index = index;
    this.#side = side;
    this.#bySlot = new Array<KnownTokens | undefined>(count).fill(undefined);
    this.#waiting = new Int32Array(count);
    this.#isWaiting = new Uint8Array(count);
  }

  of(slot: number): KnownTokens | undefined {
    return this.#bySlot[slot];
  }

  pathOf(slot: number): PrefixPath | undefined {
    return this.#bySlot[slot]?.path;
  }

  open(slot: number, known: KnownTokens): void {
    this.#bySlot[slot] = known;
  }

  /** The sequence has ended: what the index stored of it may be evicted. Returns the tokens that the index has. */
  close(slot: number): number {
    const path = this.pathOf(slot);
    if (path === undefined) return 0;
    this.#publishArrived();
    const { length } = path;
    this.#bySlot[slot] = undefined;
    this.#index.release(path);
    return length;
  }

  /** Nothing that the sequence computes from here on is cached; what it has committed stays. `flush` first. */
  stopStoring(slot: number): void {
    const path = this.pathOf(slot);
    if (path !== undefined) this.#index.stopStoring(path);
  }

  /** The sequence's text is about to be dropped: it keeps its rows, and says nothing of them any more. */
  leave(slot: number): void {
    const path = this.pathOf(slot);
    if (path === undefined) return;
    this.#bySlot[slot] = undefined;
    this.#index.leave(path);
  }

  /** Slots whose sequences, running or released, have text that is dropped, computed or to come. */
  slotsIn(scope: TextScope): number[] {
    const slots: number[] = [];
    for (const [slot, known] of this.#bySlot.entries()) {
      if (known === undefined) continue;
      const { path, buffer, count } = known;
      const tokens = path.isTransfer ? count - 1 : count; // the last one makes it find all before it
      if (scope.covers(this.#index.domainOf(path), buffer, tokens)) slots.push(slot);
    }
    return slots;
  }

  /**
   * Adds tokens, which were checked, behind those known. When more than those have been computed already, the text has
   * a gap and no longer identifies what was computed: it stays as it is.
   */
  append(slot: number, tokens: number | Int32Array): void {
    const known = this.#bySlot[slot];
    if (known === undefined || known.count < this.#memory.slots.length[slot]!) return;
    const added = typeof tokens === 'number' ? 1 : tokens.length;
    if (known.count + added > known.buffer.length) {
      known.buffer = enlarged(known.buffer, Math.max(64, known.count + added, 2 * known.buffer.length));
    }
    if (typeof tokens === 'number') known.buffer[known.count] = tokens;
    else known.buffer.set(tokens, known.count);
    known.count += added;
  }

  /** The sequence has only its first `tokens` tokens, and rows of side tensors for no more. */
  truncate(slot: number, tokens: number): void {
    if (this.#side.everything > 0) this.#memory.background.attempt(() => this.#side.truncate(slot, tokens));
    const known = this.#bySlot[slot];
    if (known === undefined || known.count <= tokens) return;
    known.count = tokens;
    this.#index.truncate(known.path, tokens);
  }

  /** The sequence is released: hand-overs of it get no more tokens. */
  finish(slot: number): void {
    if (this.#side.everything > 0) this.#side.finish(slot);
  }

  /** No sequence has the slot any more, nor any queued work: it has no rows of side tensors. */
  retire(slot: number): void {
    if (this.#side.everything > 0) this.#side.retire(slot);
  }

  /** Whether rows of the sequence's side tensors are on their way from the device, as far as `pollCopies` knows. */
  isArriving(slot: number): boolean {
    return this.#side.everything > 0 && this.#side.isCopying(slot);
  }

  /** Hears which rows of side tensors have come from the device. */
  pollCopies(): void {
    if (this.#side.everything > 0) this.#side.pollCopies();
  }

  /**
   * Ends rows of side tensors that no text and no sequence needs. Never throws: what fails is reported in the
   * background.
   */
  endDropped(): void {
    if (this.#side.everything > 0) this.#memory.background.attempt(() => { this.#side.endDropped(); });
  }

  /** Keeps a value at the end of the sequence's computed tokens; false when those are not stored. `flush` first. */
  keepValue(slot: number, value: unknown): boolean {
    const path = this.pathOf(slot);
    return path !== undefined && path.length === this.#memory.slots.length[slot] && this.#index.keepValue(path, value);
  }

  /**
   * Whether the sequence may write behind its tokens in its row `row`, as far as the index is concerned: nothing
   * else is cached there.
   */
  isTailWritable(slot: number, row: number): boolean {
    const path = this.pathOf(slot);
    return path === undefined ? !this.#index.isHolding(this.#registry.idsOf(slot)[row]!)
      : this.#index.isWritable(path, row);
  }

  /** The slot has computed tokens. */
  hasCommitted(slot: number): void {
    if (this.#isWaiting[slot] === 1 || this.#bySlot[slot] === undefined) return;
    this.#isWaiting[slot] = 1;
    this.#waiting[this.#waitingCount] = slot;
    this.#waitingCount += 1;
  }

  /** Whether `flush` may have something to do. */
  get hasNews(): boolean {
    return this.#waitingCount > 0 || this.#side.everything > 0;
  }

  /**
   * Tells the index what all sequences have committed since the last time. `CachedRows` ends what it drops for that.
   */
  flush(): void {
    while (this.#waitingCount > 0) {
      this.#waitingCount -= 1;
      const slot = this.#waiting[this.#waitingCount]!;
      this.#isWaiting[slot] = 0;
      const known = this.#bySlot[slot];
      if (known !== undefined) this.#commit(slot, known);
    }
    this.#publishArrived();
  }

  /** Rows of side tensors that have come from the device are cached, of slots whose path is open. */
  #publishArrived(): void {
    if (this.#side.everything === 0) return;
    this.#side.pollCopies();
    for (const slot of this.#side.copies.takeArrivedSlots()) {
      const path = this.pathOf(slot);
      if (path?.isStored === true && path.length > 0) this.#publish(slot, path);
    }
  }

  #commit(slot: number, { path, buffer, count }: KnownTokens): void {
    const { layout, slots } = this.#memory;
    const valid = Math.min(slots.length[slot]!, count);
    if (slots.state[slot] !== slotStates.active || !path.isStored || valid <= path.length) return;
    if (!slots.hasRoom(slot, valid)) return; // in quarantine: rows of it are lost
    this.#registry.name(slot, layout.rowsFor(valid));
    this.#index.commit(path, buffer, valid);
    if (this.#side.sideSlots.carried[slot] !== 0) this.#publish(slot, path);
  }

  #publish(slot: number, path: PrefixPath): void {
    this.#memory.background.attempt(() => { // text without its side tensors is cached all the same
      this.#side.publish(slot, path);
    });
  }
}
