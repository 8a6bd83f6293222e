// Fence: what an engine says about work that it has queued and that may not be over: a stream, or a step of its own. A device-wide
// synchronise would not do: work may be built but not launched yet, which only the engine's own step number or an event on its
// stream can tell. Read without allocating: a commit may have one in every step.

import { createError } from '../errors/index.js';
import { readOptions } from '../options.js';

/**
 * `stream`: all work queued on it so far (a CUstream as a bigint). `step`: the engine's own step number, which
 * `cache.completeStep(step)` closes; steps are over in their order.
 */
export type Fence = { readonly stream: bigint } | { readonly step: number };

export interface ReleaseOptions {
  /** What must be over before the memory may change hands, beside the fences of its commits. Default: nothing else. */
  readonly fence?: Fence | undefined;
}

export interface CommitOptions {
  /** What must be over before the memory that the batch used may change hands. Default: the cache's `stream`, or nothing. */
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
    : isPlain(options) ? options.fence : readOptions(owner, options, { fence: asIs }).fence;
  if (fence === undefined) return given.set(-1, undefined);
  if (typeof fence === 'object' && fence !== null) {
    const { stream, step } = fence as { readonly stream?: unknown; readonly step?: unknown };
    const isStream = typeof stream === 'bigint' && stream >= 0n;
    const isStep = Number.isSafeInteger(step) && (step as number) >= 0;
    if ((isStream || isStep) && (isStream || stream === undefined) && (isStep || step === undefined)) {
      return given.set(isStep ? step as number : -1, isStream ? stream : undefined);
    }
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option: 'fence', expected: '{ stream: bigint } or { step: integer }', received: fence,
  });
}

/** Whether it is an object that has `fence` and nothing else: the common case. */
function isPlain(options: FenceOptions): boolean {
  if (typeof options !== 'object' || (options as unknown) === null || Array.isArray(options)) return false;
  for (const name in options) if (name !== 'fence') return false;
  return true;
}
