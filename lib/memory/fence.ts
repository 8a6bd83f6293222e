// Fence: what must be over before a released slot's memory may change hands. A device-wide synchronise would not do: work may
// be built but not launched yet, which only the engine's own step number or an event on its stream can tell.

import { createError } from '../errors/index.js';
import { integer, isOptionsObject, optional, readOptions, streamField, type Field, type FieldPlace } from '../options.js';

/**
 * `stream`: all work queued on it so far (a CUstream as a bigint). `step`: the engine's own step number, which
 * `cache.completeStep(step)` closes.
 */
export type Fence = { readonly stream: bigint } | { readonly step: number };

export interface ReleaseOptions {
  /** Default: nothing runs on the memory any more, except a batch that is prepared and not committed yet. */
  readonly fence?: Fence | undefined;
}

const fenceField: Field<Fence | undefined> = (value, place) => {
  if (value === undefined) return undefined;
  if (isOptionsObject(value)) {
    const { stream, step } = readOptions(place.owner, value, members, place.option);
    if (stream !== undefined && step === undefined) return { stream };
    if (step !== undefined && stream === undefined) return { step };
    if (step !== undefined && stream !== undefined) throw onlyOne(place);
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: '{ stream: bigint } or { step: integer }', received: value,
  });
};

const members = { stream: optional(streamField), step: optional(integer()) };

/** Throws KV_INVALID_OPTION for a stream where there are none but 0n, on which nothing runs when a call has returned. */
export function checkFence(fence: Fence | undefined, driverKind: string): void {
  if (driverKind !== 'host' || fence === undefined || !('stream' in fence) || fence.stream === 0n) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'Sequence.release', option: 'fence.stream', expected: '0n or left out on host, which has no streams',
    received: fence.stream, hint: "Release once the work is over, or behind the engine's step: `fence: { step }`.",
  });
}

function onlyOne(place: FieldPlace): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: '{ stream: bigint } or { step: integer }', received: 'both', hint: 'Give one of the two.',
  });
}

/** The fence of a release. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readFence(options: ReleaseOptions): Fence | undefined {
  return readOptions('Sequence.release', options, { fence: fenceField }).fence;
}
