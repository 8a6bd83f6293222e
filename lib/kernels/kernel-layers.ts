// KernelLayers: a cache's tensors by layer, as the kernels take them, and its reservations, as copies take them.
// Computed once; holds no memory of the cache.

import { createError } from '../base/errors.js';
import { formatList } from '../base/format.js';
import type { Tensor } from '../cache/slots.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { Dtype } from '../base/dtypes.js';
import { kernelsOf } from './load-kernels.js';

export interface LayerShape {
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly dim: number;
  readonly valueDim: number;
}

interface KernelLayer extends LayerShape {
  readonly keys: Tensor;
  readonly values: Tensor;
  readonly scale: number;
}

/** As native: `kMostDim` of kernels/cuda/parameters.h. */
const mostDeviceDim = 256;

/** Types of K and V that attention reads. */
export const attendable: readonly Dtype[] = ['float32', 'float16', 'bfloat16'];

export class KernelLayers {
  readonly cacheDtype: Dtype;
  readonly #cache: KvCache;
  readonly #layers: readonly KernelLayer[];
  /** Number of the first layer in the whole model. */
  readonly #first: number;

  /** Throws KV_INVALID_OPTION unless every layer's query heads are a multiple of its KV heads. */
  constructor(cache: KvCache, queryHeads: number | readonly number[] | undefined, scale: number | undefined) {
    this.#cache = cache;
    this.cacheDtype = cache.tensors[0]!.dtype;
    this.#first = cache.tensors[0]!.layer;
    const keys = cache.tensors.filter(({ role }) => role === 'key');
    const values = cache.tensors.filter(({ role }) => role === 'value');
    if (Array.isArray(queryHeads) && queryHeads.length !== keys.length) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'Kernels', option: 'queryHeads', expected: `one number per layer (${keys.length})`,
        received: queryHeads.length,
      });
    }
    this.#layers = keys.map((key, index) => {
      const heads = typeof queryHeads === 'object' ? queryHeads[index]! : queryHeads ?? key.heads;
      if (heads % key.heads !== 0) {
        throw createError('KV_INVALID_OPTION', {
          reason: 'range', owner: 'Kernels',
          option: typeof queryHeads === 'object' ? `queryHeads[${index}]` : 'queryHeads',
          expected: `a multiple of the layer's ${key.heads} KV heads`, received: heads,
        });
      }
      if (kernelsOf(cache.driver) === 'cuda' && Math.max(key.dim, values[index]!.dim) > mostDeviceDim) {
        throw createError('KV_INVALID_OPTION', {
          reason: 'range', owner: 'Kernels', option: 'cache',
          expected: `one of head dims up to ${mostDeviceDim} on a GPU`,
          received: Math.max(key.dim, values[index]!.dim),
        });
      }
      return {
        keys: key, values: values[index]!, queryHeads: heads, kvHeads: key.heads, dim: key.dim,
        valueDim: values[index]!.dim, scale: scale ?? 1 / Math.sqrt(key.dim),
      };
    });
  }

  /**
   * Returns the position here of a layer, given its number in the whole model. Throws KV_INVALID_OPTION when it is not
   * on this worker, or when the kernels have no attention for the cache's dtype.
   */
  indexOf(layer: number, owner: string): number {
    if (this.#layers.length === 0 || !attendable.includes(this.cacheDtype)) {
      const kind = this.#layers.length === 0 ? 'latent attention' : this.cacheDtype;
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'cache', expected: `one of K and V in ${formatList(attendable)}`,
        received: kind,
        hint: 'Kernels can only copy tokens of other caches.',
      });
    }
    const index = Number.isSafeInteger(layer) ? layer - this.#first : -1;
    if (index >= 0 && index < this.#layers.length) return index;
    throw createError('KV_INVALID_OPTION', {
      reason: typeof layer === 'number' ? 'range' : 'type', owner, option: 'layer', received: layer,
      expected: `an integer from ${this.#first} to ${this.#first + this.#layers.length - 1}`,
    });
  }

  at(index: number): LayerShape {
    return this.#layers[index]!;
  }

  /** Flattens them for native/addon/kernels_binding.cc: 14 numbers per layer, three per reservation. */
  numbers(): { readonly layers: Float64Array; readonly regions: Float64Array } {
    const { layout, tensors } = this.#cache;
    const layers = this.#layers.flatMap(({ keys, values, queryHeads, scale }) =>
      [...tensorNumbers(keys), ...tensorNumbers(values), queryHeads, scale]);
    const regions = layout.reservations.flatMap(({ tokenBytes, slotStrideBytes }, reservation) => {
      const first = tensors.find((tensor) => tensor.reservation === reservation)!;
      return [Number(first.address) - first.offsetBytes, slotStrideBytes, tokenBytes];
    });
    return { layers: Float64Array.from(layers), regions: Float64Array.from(regions) };
  }
}

function tensorNumbers({ address, strides, heads, dim }: Tensor): number[] {
  return [Number(address), strides.slotBytes, strides.tokenBytes, strides.headBytes, heads, dim];
}
