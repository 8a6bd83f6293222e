// Probes: keys of a layer's first heads, which stored blocks have a second time behind all tensors, so that they can be
// read without the rest (docs/importance.md). Which stripes of a block they are, and what they cost. Pure.

import { createError } from '../../base/errors.js';
import { integer, nested, withDefault, type Field } from '../../base/options.js';
import type { TensorSpec } from '../../base/dtypes.js';

/** The option `prefixCache.importance` of a `KvCache`. */
export interface ImportanceOptions {
  /**
   * KV heads of each layer, 1 or more, whose keys are stored a second time; all of a layer that has fewer. More heads
   * cost more bytes and tell little more. Default 3, the paper's choice.
   */
  readonly probeHeads?: number | undefined;
}

export type ReadImportance = { readonly probeHeads: number };

const spec = { probeHeads: withDefault(integer({ min: 1, max: 2 ** 16 }), 3) };

/** Undefined where it is left out. */
export const importanceField: Field<ReadImportance | undefined> =
  (value, place) => (value === undefined ? undefined : nested(spec)(value, place));

/** Keys of one layer's first heads. */
export interface Probe {
  /** The layer's number in the whole model. */
  readonly layer: number;
  /** Index of the key tensor that they are of. */
  readonly tensor: number;
  readonly heads: number;
  /** Bytes of a token. */
  readonly tokenBytes: number;
}

/**
 * One for each layer, in layer order; none where there is no option. Throws KV_INVALID_OPTION for tensors that have no
 * keys of single heads.
 */
export function probesOf(tensors: readonly TensorSpec[], importance: ReadImportance | undefined): Probe[] {
  if (importance === undefined) return [];
  const wrong = (expected: string, received: string): Error => createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: 'prefixCache.importance', expected, received,
    hint: 'Leave it out: text is then loaded whole.',
  });
  return tensors.flatMap(({ layer, role, heads: all, dtype, tokenBytes }, tensor): Probe[] => {
    if (role === 'latent') {
      throw wrong('left out for MLA, which keeps no keys of single heads', 'a model with `attention: \'latent\'`');
    }
    if (dtype !== 'float32' && dtype !== 'float16' && dtype !== 'bfloat16') {
      throw wrong('left out for K and V that are no floating-point numbers of 16 or 32 bits', dtype);
    }
    if (role !== 'key') return [];
    const heads = Math.min(importance.probeHeads, all);
    return [{ layer, tensor, heads, tokenBytes: (tokenBytes / all) * heads }];
  });
}
