// SlotFences: what queued work may still be using, slot by slot, of running sequences and released ones. A fence
// protects the addresses of a slot: pages are free only when no address maps them, and every unmapping of rows that
// work was queued for waits for the slot's fence, so that none is needed per page.
//
// A slot may wait for a step of the engine and for any number of streams. Noting allocates nothing and makes no call.
// What was noted counts as pending until `poll` or a wait has heard otherwise.

import { types } from 'node:util';

import { createError, isKvError } from '../base/errors.js';
import {
  type FieldPlace, integer, isAddress, isOptionsObject, optional, readOptions, streamField,
} from '../base/options.js';
import type { Driver } from '../device/driver.js';
import type { NativeDriver } from '../device/native.js';

export interface SlotFencesParts {
  readonly driver: () => NativeDriver;
  readonly slots: number;
  /** The engine's stream, if the cache was told: the cache's copies run there. */
  readonly stream: bigint | undefined;
  /** Whether the engine's work may go on behind a commit without a fence: then one is noted all the same. */
  readonly isQueued: boolean;
  /** Whether some layers keep the last tokens alone: their rows go behind what each pass reads. */
  readonly hasWindows: boolean;
}

/** CUDA's legacy default stream: an event there comes after the work of all streams but those that do not block. */
const legacyStream = 0n;

export class SlotFences {
  /** Scratch of the call that reads a fence. */
  readonly given = new GivenFence();
  readonly #driver: () => NativeDriver;
  readonly #slots: number;
  readonly #defaultStream: bigint | undefined;
  readonly #isQueued: boolean;
  /** By slot: the step it waits for, or -1. */
  readonly #steps: Float64Array;
  /** The same of commits alone: until then its tokens may still be written. */
  readonly #writtenSteps: Float64Array;
  /** By slot: tokens from its start that pending work may touch. */
  readonly #tokens: Int32Array;
  /** By slot: the stream on which its sequence's work is queued. */
  readonly #homes: (bigint | undefined)[];
  readonly #streams: StreamFence[] = [];
  /** Undefined where all layers keep all tokens. */
  readonly #reads: PassReads | undefined;
  #lastStream: bigint | undefined;
  #completedStep = -1;
  #passes = 0;

  constructor({ driver, slots, stream, isQueued, hasWindows }: SlotFencesParts) {
    this.#reads = !hasWindows ? undefined : new PassReads(slots, (fence, mark) =>
      fence === ofStep ? mark <= this.#completedStep : this.#streams[fence]!.isOver(mark));
    this.#driver = driver;
    this.#slots = slots;
    this.#defaultStream = stream;
    this.#isQueued = isQueued;
    this.#steps = new Float64Array(slots).fill(-1);
    this.#writtenSteps = new Float64Array(slots).fill(-1);
    this.#tokens = new Int32Array(slots);
    this.#homes = new Array<bigint | undefined>(slots).fill(undefined);
  }

  /** Raised whenever something was heard to be over. */
  get passes(): number {
    return this.#passes;
  }

  /** Whether work is queued on streams, which must be polled to know that it is over. */
  get hasEvents(): boolean {
    return this.#streams.some((fence) => !fence.isIdle);
  }

  /** Whether a step of the engine is to be completed before some slot's fence passes. */
  get hasSteps(): boolean {
    return this.#steps.some((step) => step > this.#completedStep);
  }

  /** Whether queued work may still use the slot. */
  isPending(slot: number): boolean {
    if (this.#steps[slot]! > this.#completedStep) return true;
    for (let index = 0; index < this.#streams.length; index += 1) {
      if (this.#streams[index]!.isPending(slot)) return true;
    }
    return false;
  }

  /**
   * Slots whose tokens queued work may still write: none, as a rule. A fence that only a release named says that they
   * are used.
   */
  writtenSlots(): number[] {
    const written: number[] = [];
    for (let slot = 0; slot < this.#slots; slot += 1) {
      if (this.writtenStep(slot) >= 0 || this.#streams.some((fence) => fence.isPending(slot))) written.push(slot);
    }
    return written;
  }

  /** The step that must be completed before the slot's tokens are there, or -1. */
  writtenStep(slot: number): number {
    return this.#writtenSteps[slot]! > this.#completedStep ? this.#writtenSteps[slot]! : -1;
  }

  /** Whether work on another stream than this may still use the slot. */
  isPendingBeside(slot: number, stream: bigint): boolean {
    for (const fence of this.#streams) if (fence.stream !== stream && fence.isPending(slot)) return true;
    return false;
  }

  /** Tokens from the slot's start that pending work may touch: their rows stay mapped. */
  pendingTokens(slot: number): number {
    return this.isPending(slot) ? this.#tokens[slot]! : 0;
  }

  /**
   * The first token that a pass which may not be over computed: what layers see from there on stays mapped. Infinity:
   * all are over.
   */
  oldestPass(slot: number): number {
    return this.#reads === undefined ? Infinity : this.#reads.oldest(slot);
  }

  /** The step that must be completed before the slot's fence passes, or -1. */
  pendingStep(slot: number): number {
    return this.#steps[slot]! > this.#completedStep ? this.#steps[slot]! : -1;
  }

  /** The stream on which the sequence's work is queued, if the cache was told any. */
  streamOf(slot: number): bigint | undefined {
    return this.#homes[slot] ?? this.#defaultStream ?? this.#lastStream;
  }

  /**
   * Says on which stream a new sequence's work will be queued; undefined: nothing was said. Returns `streamOf` the slot
   * then.
   */
  setStream(slot: number, stream: bigint | undefined): bigint | undefined {
    this.#homes[slot] = stream;
    return this.streamOf(slot);
  }

  /**
   * Takes the fence of a commit, `given`, to be noted for each of its slots. False: there is none. The first time that
   * a stream is named an event is recorded there: throws what the driver throws; then nothing has changed.
   */
  open(given: GivenFence): boolean {
    if (given.isNone && this.#isQueued && !given.isAwaited) {
      given.isNamed = this.#defaultStream !== undefined;
      given.stream = this.#defaultStream ?? legacyStream;
    }
    if (given.isNone) return false;
    if (given.stream !== undefined) this.#fenceOf(given.stream);
    return true;
  }

  /**
   * Notes the fence that was opened: work may touch the slot's first `tokens` tokens until it passes, those before
   * token `from` only as far as layers look back from there.
   */
  note(slot: number, { step, stream, isNamed }: GivenFence, tokens: number, from: number): void {
    this.#touch(slot, tokens);
    if (stream !== undefined) this.#noteReads(slot, stream, from);
    else this.#reads?.note(slot, ofStep, step, from);
    if (step > this.#steps[slot]!) this.#steps[slot] = step;
    if (step > this.#writtenSteps[slot]!) this.#writtenSteps[slot] = step;
    if (stream === undefined) return;
    this.#fenceOf(stream).note(slot);
    if (!isNamed) return; // the engine did not name the stream: the cache's copies are over when a call returns
    this.#homes[slot] = stream;
    this.#lastStream = stream;
  }

  /** Before the cache itself queues work on a stream. Throws as `open`. */
  ensure(stream: bigint): void {
    this.#fenceOf(stream);
  }

  /** The engine queues work of the slot's sequence on the stream, as `note`. Throws as `open`. */
  noteWork(slot: number, stream: bigint, tokens: number, from: number): void {
    this.noteQueued(slot, stream, tokens);
    this.#noteReads(slot, stream, from);
    this.#homes[slot] = stream;
    this.#lastStream = stream;
  }

  /** Work that touches the slot's first `tokens` tokens was queued on the stream. */
  noteQueued(slot: number, stream: bigint, tokens: number): void {
    this.#touch(slot, tokens);
    this.#fenceOf(stream).note(slot);
  }

  /**
   * The slot is released behind a fence beside those it has: events are recorded, so that its streams may be destroyed.
   * Throws what recording throws; then the fence is not noted.
   */
  release(slot: number, { step, stream }: GivenFence): void {
    for (const fence of this.#streams) if (fence.isPending(slot)) fence.eventOf(slot);
    if (stream !== undefined) {
      const known = this.#find(stream);
      if (known !== undefined) known.record();
      (known ?? this.#open(stream)).noteRecorded(slot);
    }
    if (step > this.#steps[slot]!) this.#steps[slot] = step;
    this.#homes[slot] = undefined;
    if (!this.#homes.includes(this.#lastStream)) this.#lastStream = undefined; // it may be destroyed
  }

  /**
   * What is queued on `stream` from here on runs after the slot's work on other streams. Throws what the driver throws.
   */
  order(stream: bigint, slot: number): void {
    for (const fence of this.#streams) {
      if (fence.stream !== stream && fence.isPending(slot)) this.#driver().waitEvent(stream, fence.eventOf(slot));
    }
  }

  completeStep(step: number): void {
    if (step <= this.#completedStep) return;
    this.#completedStep = step;
    this.#passes += 1;
  }

  /** Polls all streams. Throws the first failure, after all were polled. */
  poll(): void {
    let failure: { readonly error: unknown } | undefined;
    for (const fence of this.#streams) {
      try {
        if (!fence.isIdle && fence.poll()) this.#passes += 1;
      } catch (error) {
        failure ??= { error };
      }
    }
    if (failure !== undefined) throw failure.error;
  }

  /**
   * Waits until queued work no longer uses the slot: for its own events, not for the device. Throws KV_WORK_QUEUED when
   * it waits for a step, which only the engine can complete, and what the driver throws. `operation` follows "Cannot".
   */
  wait(slot: number, operation: string): void {
    if (!this.isPending(slot)) return;
    const step = this.pendingStep(slot);
    if (step >= 0) throw createError('KV_WORK_QUEUED', { slot, operation, step });
    this.#waitForStreams(slot);
  }

  /** The same until its tokens are there. */
  waitWritten(slot: number, operation: string): void {
    this.checkWritten(slot, operation);
    this.#waitForStreams(slot);
  }

  /** Throws KV_WORK_QUEUED when a step of the engine may still write the slot's tokens. */
  checkWritten(slot: number, operation: string): void {
    const step = this.writtenStep(slot);
    if (step >= 0) throw createError('KV_WORK_QUEUED', { slot, operation, step });
  }

  /** Waits for the streams of all fences and forgets them: the cache closes. Retryable. */
  finish(): void {
    for (const fence of this.#streams) fence.finish();
  }

  /** The cache was collected: its events go, whatever they wait for. Throws what the driver throws; retryable. */
  abandon(): void {
    for (const fence of this.#streams) fence.abandon();
  }

  #noteReads(slot: number, stream: bigint, from: number): void {
    if (this.#reads === undefined) return;
    const fence = this.#fenceOf(stream);
    this.#reads.note(slot, this.#streams.indexOf(fence), fence.epoch, from);
  }

  #waitForStreams(slot: number): void {
    for (const fence of this.#streams) if (fence.isPending(slot)) fence.wait(slot);
    this.#passes += 1;
  }

  #touch(slot: number, tokens: number): void {
    this.#tokens[slot] = Math.max(tokens, this.pendingTokens(slot));
  }

  #fenceOf(stream: bigint): StreamFence {
    return this.#find(stream) ?? this.#open(stream);
  }

  #find(stream: bigint): StreamFence | undefined {
    for (let index = 0; index < this.#streams.length; index += 1) {
      if (this.#streams[index]!.stream === stream) return this.#streams[index]!;
    }
    return undefined;
  }

  /** Its first event says whether the stream exists, before anything is noted there. */
  #open(stream: bigint): StreamFence {
    const idle = this.#streams.find((fence) => fence.isIdle);
    const fence = idle ?? new StreamFence(this.#driver, this.#slots, stream);
    const before = fence.stream;
    fence.stream = stream;
    try {
      fence.record();
    } catch (error) {
      fence.stream = before;
      throw error;
    }
    if (idle === undefined) this.#streams.push(fence);
    return fence;
  }
}

// PassReads: by slot, where the passes that may not be over begin to compute, each with its own fence: while an engine
// queues one pass before the last is over, a slot is never idle, and rows behind a window go by what each pass reads.

/** In place of a stream's number: the fence is a step of the engine. */
const ofStep = -1;
/** Numbers of a pass: its fence, the mark at which that is over, and the first token that it computes. */
const ofPass = 3;
/** Numbers of a slot from which on those of passes that are over are dropped before another is noted. */
const manyNumbers = 32 * ofPass;

class PassReads {
  readonly #passes: readonly number[][];
  readonly #isOver: (fence: number, mark: number) => boolean;

  constructor(slots: number, isOver: (fence: number, mark: number) => boolean) {
    this.#passes = Array.from({ length: slots }, () => []);
    this.#isOver = isOver;
  }

  /**
   * A pass that computes from token `from` on is over with `mark`: a step, or an epoch of the stream with number
   * `fence`.
   */
  note(slot: number, fence: number, mark: number, from: number): void {
    const passes = this.#passes[slot]!;
    const last = passes.length - ofPass;
    if (last >= 0 && passes[last] === fence && passes[last + 1] === mark) {
      passes[last + 2] = Math.min(passes[last + 2]!, from);
      return;
    }
    if (last >= manyNumbers) this.oldest(slot);
    passes.push(fence, mark, from);
  }

  /** The lowest first token of those that are not over, which alone are kept; Infinity: there are none. */
  oldest(slot: number): number {
    const passes = this.#passes[slot]!;
    let oldest = Infinity;
    let kept = 0;
    for (let at = 0; at < passes.length; at += ofPass) {
      if (this.#isOver(passes[at]!, passes[at + 1]!)) continue;
      oldest = Math.min(oldest, passes[at + 2]!);
      passes.copyWithin(kept, at, at + ofPass);
      kept += ofPass;
    }
    passes.length = kept;
    return oldest;
  }
}

// StreamFence: which slots have work queued on one stream. A slot is noted with the number of the stream's present
// epoch; an event recorded later ends the epoch and covers all that was queued until then, so that one event serves
// every slot noted in it and noting costs a write to a typed array. Records, asks and destroys events; decides nothing.

/** Events under way at once, unless something must know. */
const mostEvents = 8;

interface Recorded {
  readonly epoch: number;
  readonly event: bigint;
}

export class StreamFence {
  /** A CUstream; a fence without work may be given another. */
  stream: bigint;
  readonly #driver: () => NativeDriver;
  /** By slot: the epoch in which it was noted last; 0: never. */
  readonly #notedIn: Float64Array;
  /** In order of recording; those that are done are destroyed. */
  readonly #events: Recorded[] = [];
  #epoch = 1;
  #lastNoted = 0;
  #passed = 0;

  constructor(driver: () => NativeDriver, slots: number, stream: bigint) {
    this.#driver = driver;
    this.#notedIn = new Float64Array(slots);
    this.stream = stream;
  }

  /** Whether no slot has work here, as far as was heard. */
  get isIdle(): boolean {
    return this.#lastNoted <= this.#passed && this.#events.length === 0;
  }

  /** Of what is queued now. */
  get epoch(): number {
    return this.#epoch;
  }

  /** Whether what was queued in an epoch is known to be over. */
  isOver(epoch: number): boolean {
    return epoch <= this.#passed;
  }

  /** The slot has work queued here. */
  note(slot: number): void {
    this.#notedIn[slot] = this.#epoch;
    this.#lastNoted = this.#epoch;
  }

  /** Whether the slot's work here is not known to be over. */
  isPending(slot: number): boolean {
    return this.#notedIn[slot]! > this.#passed;
  }

  /** Ends the epoch with an event. Throws what the driver throws; then nothing has changed. */
  record(): void {
    const event = this.#driver().recordEvent(this.stream);
    this.#events.push({ epoch: this.#epoch, event });
    this.#epoch += 1;
  }

  /** The slot's work is that which the last event covers. */
  noteRecorded(slot: number): void {
    this.#notedIn[slot] = this.#epoch - 1;
    this.#lastNoted = Math.max(this.#lastNoted, this.#epoch - 1);
  }

  /** An event after the slot's work, which is pending. Throws what recording it throws. */
  eventOf(slot: number): bigint {
    if (this.#notedIn[slot] === this.#epoch) this.record();
    return this.#events.find(({ epoch }) => epoch >= this.#notedIn[slot]!)!.event;
  }

  /**
   * Hears what is over. True when something is that was not. Throws what the driver throws; asking again goes on from
   * there.
   */
  poll(): boolean {
    const before = this.#passed;
    this.#forgetPassed();
    if (this.#lastNoted === this.#epoch && this.#events.length < mostEvents) {
      this.record();
      this.#forgetPassed();
    }
    return this.#passed > before;
  }

  /** Waits until the slot's work here is over. */
  wait(slot: number): void {
    this.#driver().synchronizeEvent(this.eventOf(slot));
    this.#forgetPassed();
  }

  /** Waits for everything, and forgets it. Nothing runs on a lost device. Retryable. */
  finish(): void {
    try {
      if (this.#lastNoted === this.#epoch) this.record();
      for (let recorded = this.#events[0]; recorded !== undefined; recorded = this.#events[0]) {
        // The engine may have destroyed a stream whose work is done: its events can still be asked.
        if (!this.#driver().queryEvent(recorded.event)) this.#driver().synchronizeEvent(recorded.event);
        this.#forget(recorded);
      }
    } catch (error) {
      if (!isKvError(error, 'KV_DRIVER_LOST')) throw error;
    }
  }

  /** Forgets everything without asking. Throws what the driver throws; the rest is there still. */
  abandon(): void {
    for (let recorded = this.#events[0]; recorded !== undefined; recorded = this.#events[0]) this.#forget(recorded);
  }

  #forgetPassed(): void {
    for (let recorded = this.#events[0]; recorded !== undefined; recorded = this.#events[0]) {
      if (!this.#driver().queryEvent(recorded.event)) return;
      this.#forget(recorded);
    }
  }

  #forget({ epoch, event }: Recorded): void {
    this.#driver().destroyEvent(event);
    this.#events.shift();
    this.#passed = epoch;
  }
}

// Fence: what an engine says about work that it has queued and that may not be over: a stream, or a step of its own. A
// device-wide synchronise would not do: work may be built but not launched yet, which only the engine's own step number
// or an event on its stream can tell. Read without allocating: a commit may have one in every step.

/**
 * `stream`: all work queued on it so far (a CUstream as a bigint). `step`: the engine's own step number, which
 * `cache.completeStep(step)` closes; steps are over in their order.
 */
export type Fence = { readonly stream: bigint } | { readonly step: number };

/** Options of `Sequence.release`. */
export interface ReleaseOptions {
  /** What must be over before the memory may change hands, beside the fences of its commits. Default: nothing else. */
  readonly fence?: Fence | undefined;
}

/** Options of `KvCache.commit` and `KvCache.discard`. */
export interface CommitOptions {
  /**
   * What must be over before the memory that the batch used may change hands. `awaited`: nothing, the work is over.
   * Default: the cache's `stream`; without it all work on CUDA's legacy default stream and on streams that are ordered
   * with it; nothing where the cache has `work: 'awaited'`, or its driver no streams.
   */
  readonly fence?: Fence | 'awaited' | undefined;
}

type FenceOptions = ReleaseOptions | CommitOptions;

/** What a call was given, read once; the object is used again. */
export class GivenFence {
  /** Of a commit whose work is over, whatever the cache's default: not to be written. */
  static readonly awaited = new GivenFence().set(-1, undefined, true);
  /** -1: none. */
  step = -1;
  stream: bigint | undefined = undefined;
  /** Whether the caller says that no work is queued any more. */
  isAwaited = false;
  /** Whether the caller, or the cache's options, named the stream. */
  isNamed = true;

  set(step: number, stream: bigint | undefined, isAwaited = false): this {
    this.step = step;
    this.stream = stream;
    this.isAwaited = isAwaited;
    this.isNamed = true;
    return this;
  }

  get isNone(): boolean {
    return this.step < 0 && this.stream === undefined;
  }
}

const asIs = (value: unknown): unknown => value;

/** Reads the fence of a call into `given`. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readFence(owner: string, options: FenceOptions | undefined, given: GivenFence): GivenFence {
  const fence = options === undefined ? undefined
    : hasOnly(options, 'fence', 'fence') ? options.fence : readOptions(owner, options, { fence: asIs }).fence;
  if (fence === undefined) return given.set(-1, undefined);
  if (fence === 'awaited' && owner !== releaseOwner) return given.set(-1, undefined, true);
  if (hasOnly(fence, 'stream', 'step')) {
    const { stream, step } = fence as { readonly stream?: unknown; readonly step?: unknown };
    if (step === undefined && isAddress(stream)) return given.set(-1, stream);
    if (stream === undefined && Number.isSafeInteger(step) && (step as number) >= 0) {
      return given.set(step as number, undefined);
    }
  }
  const { stream, step } = fenceMembers(fence, { owner, option: 'fence' });
  return given.set(step ?? -1, stream);
}

const releaseOwner = 'Sequence.release';

const members = { stream: optional(streamField), step: optional(integer()) };

function fenceMembers(
  fence: unknown, place: FieldPlace,
): { readonly stream?: bigint | undefined; readonly step?: number | undefined } {
  if (isOptionsObject(fence)) {
    const read = readOptions(place.owner, fence, members, place.option);
    if (read.stream !== undefined && read.step !== undefined) throw onlyOne(place);
    if (read.stream !== undefined || read.step !== undefined) return read;
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, received: fence,
    expected: `{ stream: bigint }${place.owner === releaseOwner ? '' : ", 'awaited'"} or { step: integer }`,
  });
}

/**
 * Throws KV_INVALID_OPTION for a stream where there are none but 0n, on which nothing runs when a call has returned,
 * and those that the driver lent.
 */
export function checkFence(
  owner: 'Sequence.release' | 'KvCache.commit' | 'KvCache.discard' | 'KvCache.step', fence: GivenFence, driver: Driver,
): void {
  const { stream } = fence;
  if (driver.info.hasStreams || stream === undefined || stream === 0n) return;
  if (driver.hasLent(stream)) { // it stands for nothing there
    fence.set(fence.step, 0n);
    return;
  }
  const verb = { 'Sequence.release': 'Release', 'KvCache.commit': 'Commit', 'KvCache.discard': 'Discard', 'KvCache.step': 'End it' }[owner];
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner, option: 'fence.stream', expected: '0n or left out on host, which has no streams',
    received: stream, hint: `${verb} once the work is over, or behind the engine's step: \`fence: { step }\`.`,
  });
}

function onlyOne(place: FieldPlace): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: '{ stream: bigint } or { step: integer }', received: 'both',
    hint: 'Give one of the two.',
  });
}

/** Whether it is an object of the caller's without other members than these: the common case. */
function hasOnly(value: unknown, one: string, other: string): boolean {
  if (typeof value !== 'object' || value === null || types.isProxy(value) || Array.isArray(value)) return false;
  for (const name in value) if (name !== one && name !== other) return false;
  return true;
}
