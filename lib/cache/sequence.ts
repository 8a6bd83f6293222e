// Sequence: one request's lease of a slot. A handle: it carries the slot's generation, so that using it after release
// is an error and never touches another request's memory. All state is the cache's.

import type { TensorView } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { checkInteger, notConstructible, readArray } from '../base/options.js';
import type { Lifetime } from '../device/cache-calls.js';
import { readAppended } from '../prefix/prompt-tokens.js';
import { HandOver } from '../side/hand-over.js';
import { readSideRows, type SideRows, type SideRowsByName } from '../side/side-rows.js';
import type { Admitted, CachedBy, SlotLeases } from './admission.js';
import type { SequenceTokens } from './sequence-tokens.js';
import { checkFence, GivenFence, readFence, type ReleaseOptions } from './slot-fences.js';
import { holdsSlots, type SlotMemory, type Slots } from './slots.js';

/** The parts of a cache that do what its sequences ask for. @internal */
export interface SequenceOwner {
  readonly memory: SlotMemory;
  readonly lifetime: Lifetime;
  readonly leases: SlotLeases;
  readonly tokens: SequenceTokens;
  readonly sideRows: SideRows;
}

/** What a sequence has beside what it was admitted with. */
interface SequenceExtras {
  readonly demotedTokens?: number;
  readonly selection?: TokenSelection | undefined;
}

/** Throws KV_SLOT_RELEASED once the slot's lease of this generation is over, and KV_CLOSED once its cache is closed. */
function checkLease(
  { memory: { slots }, lifetime }: Pick<SequenceOwner, 'memory' | 'lifetime'>, slot: number, generation: number,
): void {
  const currentGeneration = slots.generation[slot]!;
  if (currentGeneration === generation) return;
  lifetime.check('use a sequence');
  throw createError('KV_SLOT_RELEASED', { slot, generation, currentGeneration });
}

/** What throws so once the slot's present lease is over. @internal */
export function leaseCheck(owner: Pick<SequenceOwner, 'memory' | 'lifetime'>, slot: number): () => void {
  const generation = owner.memory.slots.generation[slot]!;
  return () => { checkLease(owner, slot, generation); };
}

/** One request's lease of a slot: its tokens, its length, its memory. Made by `KvCache.acquire` and `fork`. */
export class Sequence {
  /** Row of the batch dimension in every tensor. */
  readonly slot: number;
  /** Tokens that came from the prefix cache; they need not be computed. */
  readonly cachedTokens: number;
  /** How they came: their sum is `cachedTokens`. */
  readonly cachedBy: CachedBy;
  /**
   * Tokens of its prompt that other sequences are computing at this moment, counted from the start; 0 when that is no
   * more than `cachedTokens`. An engine that releases this sequence, waits for those and acquires again need not
   * compute them.
   */
  readonly pendingTokens: number;
  /**
   * Tokens of its prompt behind `cachedTokens` that tiers have, as far as known without asking them:
   * `cache.prefixes.promote` before acquiring would have brought them.
   */
  readonly demotedTokens: number;
  /**
   * What `keepValue` kept at the end of the same prompt: its last logits, say. Then all of it is cached and nothing is
   * left to compute.
   */
  readonly keptValue: unknown;
  /**
   * Which tokens of its text each layer holds, for its engine, which must load them with the first pass; undefined: it
   * is exact, and holds all. Of its first `selection.textTokens` tokens those behind `selection.exactTokens` are
   * selected from.
   */
  readonly selection: TokenSelection | undefined;
  readonly #owner: SequenceOwner;
  /** As `slot`, which its holder can overwrite. */
  readonly #slot: number;
  readonly #generation: number;
  /** As `selection`. */
  readonly #selection: TokenSelection | undefined;

  /** @internal Use `cache.acquire`. */
  constructor(owner: SequenceOwner, admitted: Admitted, { demotedTokens = 0, selection }: SequenceExtras = {}) {
    if (!holdsSlots(owner)) throw notConstructible('Sequence', 'cache.acquire');
    const { slot, cachedTokens, cachedBy, pendingTokens, keptValue } = admitted;
    this.slot = slot;
    this.cachedTokens = cachedTokens;
    this.cachedBy = cachedBy;
    this.pendingTokens = pendingTokens;
    this.demotedTokens = demotedTokens;
    this.keptValue = keptValue;
    this.selection = selection;
    this.#selection = selection;
    this.#owner = owner;
    this.#slot = slot;
    this.#generation = owner.memory.slots.generation[slot]!;
  }

  /** Whether it was leased from a cache, and is no object that only has the prototype of one. @internal */
  static isInstance(value: unknown): value is Sequence {
    return typeof value === 'object' && value !== null && #owner in value;
  }

  /**
   * True once it was released, or its cache closed: everything below throws KV_SLOT_RELEASED from then on, or KV_CLOSED
   * where the cache is closed.
   */
  get isReleased(): boolean {
    return this.#owner.memory.slots.generation[this.#slot] !== this.#generation;
  }

  /**
   * Whether it holds only selected tokens of its text, so that its results are not exact: it is not cached, and cannot
   * be forked.
   */
  get isLossy(): boolean {
    return this.#selection !== undefined;
  }

  /** Tokens whose K and V are valid. */
  get length(): number {
    return this.#owner.memory.slots.length[this.#check()]!;
  }

  /** Rows mapped for it, as far as this thread has heard from the mapper. */
  get mappedRows(): number {
    return this.#owner.memory.slots.rows[this.#check()]!;
  }

  /**
   * Address of its first token in a tensor (index into `cache.tensors`), for kernels: [token, head, dim] by the
   * strides.
   */
  address(tensor: number): bigint {
    const slot = this.#check();
    return this.#owner.memory.address(slot, tensor);
  }

  /**
   * Its mapped tokens of a tensor (index into `cache.tensors`) as a typed array over the memory itself, host only:
   * `float32` as a Float32Array, `float16` and `bfloat16` as a Uint16Array of their bits, `float8` as a Uint8Array,
   * `int8` as an Int8Array. Element [token, head, i] is at (token · tokenBytes + head · headBytes) / elementBytes + i
   * by the tensor's strides, where `token` counts from `firstToken`. After growth ask again; after release, or before
   * any of it is unmapped, the array is detached and has length 0.
   */
  view(tensor: number): TensorView {
    const slot = this.#check();
    return this.#owner.memory.view(slot, tensor);
  }

  /**
   * The first token that `view` shows of a tensor (index into `cache.tensors`): 0, or of a layer that keeps the last
   * tokens alone, the first one that is mapped whole.
   */
  firstToken(tensor: number): number {
    const slot = this.#check();
    return this.#owner.memory.firstToken(slot, tensor);
  }

  /**
   * Drops the last tokens (a rejected speculation): `length` becomes `tokens`, which must not be larger. Recorded
   * tokens past it are forgotten, those of the prompt too: record them again with `append` to have them cached.
   * Truncating to the current length forgets only tokens that were recorded and not computed. Where layers keep the
   * last tokens alone, the sequence can always go back to `rollbackTokens` tokens below its largest length so far, and
   * further while the tokens that the layers see there are mapped. Otherwise it throws KV_WINDOW_PASSED, and nothing
   * has changed.
   */
  truncate(tokens: number): void {
    const { lifetime, memory, leases } = this.#owner;
    const slot = this.#check();
    checkInteger('Sequence.truncate', 'tokens', tokens, 0, memory.slots.length[slot]!, 'It can only become shorter.');
    lifetime.enter('truncate a sequence');
    this.#checkNotComputing(slot, 'truncate');
    if (tokens < (this.#selection?.textTokens ?? 0)) {
      throw createError('KV_SEQUENCE_LOSSY', { operation: `truncate it to ${tokens} tokens` });
    }
    memory.windows?.checkTruncate(slot, tokens);
    leases.truncate(slot, tokens);
  }

  /**
   * Says which tokens come next, before they are computed: those sampled, one or several, so that they are cached too.
   * Without it, or after a token computed unannounced, only the text known until then is. Nothing happens for a
   * sequence whose prompt's tokens were not given. Throws KV_INVALID_OPTION.
   */
  append(tokens: number | ArrayLike<number>): void {
    const read = readAppended(tokens);
    const slot = this.#check();
    this.#owner.lifetime.check('append tokens');
    this.#owner.tokens.append(slot, read);
  }

  /**
   * Keeps a value, such as the last logits, for a request whose prompt is exactly the text computed so far. Returns
   * false where it is not kept: the text is not cached, or the sequence has `caching: 'read'`. The value goes with the
   * text's last row, or when there are more than `endValues`.
   */
  keepValue(value: unknown): boolean {
    const slot = this.#check();
    this.#owner.lifetime.enter('keep a value');
    this.#owner.leases.synchronize();
    return this.#owner.tokens.keepValue(slot, value);
  }

  /**
   * Another sequence with the same tokens (beam search, several answers), in a slot of its own. Rows are shared; the
   * one that is written to next is copied when either writes first. All its tokens count as cached: its `cachedTokens`
   * and `cachedBy.aliasedTokens` are its length, though nothing was looked up, and no metric of the prefix cache counts
   * them. Throws KV_NO_FREE_SLOT, KV_SLOT_BUSY while a prepared batch computes on it or where the driver has ruined it,
   * and the driver's errors; then nothing has changed.
   */
  fork(): Sequence {
    const slot = this.#check();
    this.#owner.lifetime.enter('fork a sequence');
    this.#checkNotComputing(slot, 'fork');
    if (this.isLossy) throw createError('KV_SEQUENCE_LOSSY', { operation: 'fork it' });
    return new Sequence(this.#owner, this.#owner.leases.fork(slot));
  }

  /**
   * Tokens from the first on that have a row of a side tensor, committed or not. Throws KV_INVALID_OPTION,
   * KV_SIDE_STATE.
   */
  sideTokens(name: string): number {
    const slot = this.#check();
    const { tensors: side } = this.#owner.sideRows;
    const tensor = side.names.carriedBy(slot, { owner: 'Sequence.sideTokens', option: 'name' }, name, 'read');
    return tensor.writes.written[side.sideSlots.of[slot]!]!;
  }

  /**
   * Writes rows of side tensors by name, each [tokens, width] as a typed array of its dtype (as `HandOver.rows`), for
   * tokens from `from` on, between `prepare` and `commit`. Rows that earlier calls wrote from `from` on are dropped.
   * `KvCache.writeSide` writes those of a whole batch. Throws KV_INVALID_OPTION, KV_SIDE_STATE, and what the driver
   * throws; where the driver fails, the sequence has none of these rows.
   */
  writeSide(from: number, rows: SideRowsByName): void {
    const read = readSideRows('Sequence.writeSide', rows);
    const slot = this.#check();
    checkInteger('Sequence.writeSide', 'from', from);
    this.#owner.lifetime.enter('write side tensors');
    this.#owner.sideRows.writeTo('Sequence.writeSide', slot, from, read);
  }

  /**
   * Its rows of side tensors (default: all that it carries), for the next stage, also after this sequence was released.
   * Close it when the rows were read: until then it keeps their memory. Throws KV_INVALID_OPTION, KV_SIDE_STATE.
   */
  handOver(names?: readonly string[]): HandOver {
    const owner = 'Sequence.handOver';
    // getters may run
    const read =
      names === undefined ? undefined : readArray(names, { owner, option: 'names' }, (name) => name as string);
    const slot = this.#check();
    const { sideRows: { tensors: side }, lifetime } = this.#owner;
    lifetime.enter('hand over side tensors');
    const tensors = side.names.carriedBits(owner, slot, read, 'hand over');
    return new HandOver(side, slot, tensors);
  }

  /**
   * Gives the slot back, once the fences of its commits have passed, and `fence`. Its pages stay mapped until they are
   * needed. Throws KV_SLOT_RELEASED the second time, and KV_INVALID_OPTION for a fence of a stream on host, which has
   * none; then nothing has changed.
   */
  release(options?: ReleaseOptions): void {
    const fence = readFence('Sequence.release', options, new GivenFence());
    const { lifetime, memory, leases } = this.#owner;
    const slot = this.#check();
    lifetime.enter('release a sequence');
    checkFence('Sequence.release', fence, memory.pool.driver);
    leases.release(slot, fence);
    this.#selection?.end();
  }

  [Symbol.dispose](): void {
    if (!this.isReleased) this.release();
  }

  /**
   * The slot of a sequence, if it is one, alive and of this cache; static, since a method can be overwritten. @internal
   */
  static slotIn(slots: Slots, sequence: Sequence, owner: string): number {
    if (typeof sequence !== 'object' || sequence === null || !(#owner in sequence)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'sequence', expected: 'a Sequence', received: sequence,
      });
    }
    if (slots !== sequence.#owner.memory.slots) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'KvCache', option: 'sequence', expected: 'a sequence of this cache', received: sequence,
        hint: 'It belongs to another cache.',
      });
    }
    return sequence.#check();
  }

  #check(): number {
    checkLease(this.#owner, this.#slot, this.#generation);
    return this.#slot;
  }

  #checkNotComputing(slot: number, operation: string): void {
    if (!this.#owner.memory.slots.isComputing(slot)) return;
    throw createError('KV_SLOT_BUSY', { slot, operation, holder: 'a prepared batch' });
  }
}

// TokenSelection: what a lossy sequence and its engine know of the part of a stored text that each layer of it holds.
// Types only: tiers choose and load the tokens (lib/tiers/selection/), the core knows how many there are and says when
// the sequence ends.

/** What selections came to. */
export interface SelectionCounts {
  /** Sequences that hold selected tokens. */
  readonly sequences: number;
  /**
   * Of these, sequences whose text tiers no longer had, or did not give in time, while it was loaded: they were to be
   * computed anew.
   */
  readonly lostSequences: number;
  /** Layers whose tokens were selected. */
  readonly layers: number;
  /** Of these, layers that got all tokens, since their probe heads did not agree. */
  readonly fallBacks: number;
  /** Tokens that there were to choose from, summed over layers. */
  readonly tokens: number;
  /** Tokens that were loaded, summed over layers. */
  readonly selectedTokens: number;
  /** Bytes that were read from tiers, those that selectors looked at included. */
  readonly readBytes: number;
  /** Ranges with a checksum of their own that were read; of blocks that were read whole none are counted. */
  readonly chunks: number;
}

/** What an engine knows of its new tokens when it asks for a layer. */
export interface LayerQueries {
  /** Rotated queries of the sequence's new tokens, [token, query head, dim]. */
  readonly queries: Float32Array;
  /** Query heads of the layer, a multiple of its KV heads. */
  readonly queryHeads: number;
  /** Factor of the products of queries and keys. Default 1 / √dim. */
  readonly scale?: number | undefined;
  /** Ends the loading: it rejects with KV_SELECTION_LOST. */
  readonly signal?: AbortSignal | undefined;
}

/** What a layer of a sequence is to hold, in the order of the text. */
export interface SelectedRows {
  /** How many tokens. */
  readonly tokens: number;
  /** [token, KV head, dim], over shared memory. */
  readonly keys: Float32Array;
  /** [token, KV head, value dim], over shared memory. */
  readonly values: Float32Array;
}

/** Which tokens each layer of a lossy sequence holds: `Sequence.selection`. */
export interface TokenSelection {
  /** Tokens of the text's start that the sequence has exactly, in every layer. */
  readonly exactTokens: number;
  /** Tokens of the text up to where it was selected from: what the sequence's length was when it was acquired. */
  readonly textTokens: number;
  /** Whether every layer was loaded. */
  readonly isLoaded: boolean;
  /**
   * Why a layer could not be loaded; undefined: none failed. What the sequence computed then is of no use: release it,
   * and compute its text.
   */
  readonly failure: Error | undefined;
  /** What it came to so far. */
  readonly counts: SelectionCounts;
  /**
   * How many tokens of the text a layer does not hold: its new tokens lie so many places before their positions, and
   * that many fewer are attended to. All that were to be selected, until it was loaded. Throws KV_INVALID_OPTION.
   */
  droppedTokens(layer: number): number;
  /**
   * Chooses and loads a layer's tokens; the engine writes them behind the first `exactTokens` tokens of its slot, and
   * attends to no others. Once for each layer, in order. The queries are read before it returns. Rejects with
   * KV_SELECTION_LOST where tiers no longer give the text, for this layer and all after it; with KV_SLOT_RELEASED, or
   * KV_CLOSED, once the sequence is released, also while it loads; and for wrong arguments.
   */
  load(layer: number, queries: LayerQueries): Promise<SelectedRows>;
  /** Its sequence is released: nothing more is read, soon, since tiers of users hear of it. @internal */
  end(): void;
}
