// Fence: what an engine says about work that it has queued and that may not be over: a stream, or a step of its own. A
// device-wide synchronise would not do: work may be built but not launched yet, which only the engine's own step number
// or an event on its stream can tell. Read without allocating: a commit may have one in every step.

import { types } from 'node:util';

import { createError } from '../base/errors.js';
import type { Driver } from '../device/driver.js';
import {
  integer, isAddress, isOptionsObject, optional, readOptions, streamField, type FieldPlace,
} from '../base/options.js';

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
   * What must be over before the memory that the batch used may change hands. Default: the cache's `stream`, or
   * nothing.
   */
  readonly fence?: Fence | undefined;
}

type FenceOptions = ReleaseOptions | CommitOptions;

/** What a call was given, read once; the object is used again. */
export class GivenFence {
  /** -1: none. */
  step = -1;
  stream: bigint | undefined = undefined;

  set(step: number, stream: bigint | undefined): this {
    this.step = step;
    this.stream = stream;
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
    reason: 'type', ...place, expected: '{ stream: bigint } or { step: integer }', received: fence,
  });
}

/**
 * Throws KV_INVALID_OPTION for a stream where there are none but 0n, on which nothing runs when a call has returned,
 * and those that the driver lent.
 */
export function checkFence(
  owner: 'Sequence.release' | 'KvCache.commit' | 'KvCache.discard', fence: GivenFence, driver: Driver,
): void {
  const { stream } = fence;
  if (driver.info.hasStreams || stream === undefined || stream === 0n) return;
  if (driver.hasLent(stream)) { // it stands for nothing there
    fence.set(fence.step, 0n);
    return;
  }
  const verb = { 'Sequence.release': 'Release', 'KvCache.commit': 'Commit', 'KvCache.discard': 'Discard' }[owner];
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
