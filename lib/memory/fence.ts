// Fence: what must be over before a released slot's memory may change hands. A device-wide synchronise would not do: work may
// be built but not launched yet, which only the engine's own step number or an event on its stream can tell.

import { createError } from '../errors/index.js';
import { isAddress, readOptions, withoutRevoked, type Field } from '../options.js';

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
  if (typeof value === 'object' && value !== null) {
    const { stream, step } = withoutRevoked(value, place, () => {
      const { stream, step } = value as { readonly stream?: unknown; readonly step?: unknown };
      return { stream, step };
    });
    if (isAddress(stream)) return { stream };
    if (Number.isSafeInteger(step) && (step as number) >= 0) return { step: step as number };
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: '{ stream: bigint } or { step: integer }', received: value,
  });
};

/** The fence of a release. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readFence(options: ReleaseOptions): Fence | undefined {
  return readOptions('Sequence.release', options, { fence: fenceField }).fence;
}
