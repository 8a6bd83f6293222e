// A step that is being recorded: what stands for its sequences, and what is refused meanwhile, because every replay
// would repeat it.

import { createError } from '../base/errors.js';
import type { NativeKernels } from '../device/native-kernels.js';
import type { SequenceSpans } from './step-spans.js';

/**
 * What a step is recorded with: stands for its sequences in `append` and `decodeAttention`. Row i is sequence i of the
 * replay.
 */
export interface RecordedStep {
  /** Rows that it computes; those behind the sequences of a replay come to nothing. */
  readonly size: number;
  /** [row]: the new token's id, for DenseKernels.gather: an address on a device. 0 in rows that come to nothing. */
  readonly tokens: Int32Array | bigint;
  /** [row]: its place in its text, for DenseKernels.rotate; a table for it must reach as far as `maxTokens`. */
  readonly positions: Int32Array | bigint;
}

/**
 * A recorded step as the kernels take it; of use while it is being recorded, and to the kernels it was made for.
 * @internal
 */
export class StepPlace implements RecordedStep {
  readonly size: number;
  readonly tokens: Int32Array | bigint;
  readonly positions: Int32Array | bigint;
  readonly #list: SequenceSpans | bigint;
  readonly #kernels: NativeKernels;
  #isRecording = false;

  /** `list`: the sequences, on a device the address of [slot, length, tokens, first row] of each row. */
  constructor(size: number, kernels: NativeKernels, { list, positions, tokens }: PlaceParts) {
    [this.size, this.positions, this.tokens] = [size, positions, tokens];
    [this.#list, this.#kernels] = [list, kernels];
    Object.freeze(this);
  }

  /** Whether it is one that was made here, and no object that only has its prototype. */
  static isInstance(value: unknown): value is StepPlace {
    return typeof value === 'object' && value !== null && #list in value;
  }

  record(record: (step: RecordedStep) => void): void {
    this.#isRecording = true;
    try {
      checkSynchronous(record(this), 'Kernels.captureSteps', 'record');
    } finally {
      this.#isRecording = false;
    }
  }

  /** Throws KV_INVALID_OPTION unless it is being recorded with these kernels. */
  listFor(kernels: NativeKernels, owner: string): SequenceSpans | bigint {
    if (this.#isRecording && this.#kernels === kernels) return this.#list;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option: 'sequences', expected: 'a step that is being recorded with these kernels',
      received: 'another',
    });
  }
}

interface PlaceParts {
  readonly list: SequenceSpans | bigint;
  readonly positions: Int32Array | bigint;
  readonly tokens: Int32Array | bigint;
}

/** The recordings of some kernels: what is queued meanwhile is repeated by every replay. @internal */
export class Recording {
  #steps = 0;

  run(place: StepPlace, record: (step: RecordedStep) => void): void {
    this.#steps += 1;
    try {
      place.record(record);
    } finally {
      this.#steps -= 1;
    }
  }

  /** Throws KV_INVALID_OPTION while a step is recorded, for a call that names slots by itself. */
  checkNone(owner: string, option: string): void {
    if (this.#steps === 0) return;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option, expected: 'the step that `record` was given', received: 'slots of its own',
      hint: 'Every replay would repeat these slots. Pass the step, and queue other work outside of `record`.',
    });
  }
}

/** Throws KV_INVALID_OPTION for what an async function returned: it goes on when the call is over. @internal */
export function checkSynchronous(result: unknown, owner: string, option: string): void {
  if (typeof result !== 'object' || result === null || !('then' in result) || typeof result.then !== 'function') return;
  Promise.resolve(result).catch(() => {}); // this error is the caller's, whatever comes of the promise
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option, expected: 'a synchronous function', received: result,
    hint: 'Only what it queues before it returns counts: do its waiting before the call.',
  });
}
