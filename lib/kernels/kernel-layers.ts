// KernelLayers: a cache's tensors by layer, as the kernels take them, and its reservations, as copies take them.
// Computed once; holds no memory of the cache.

import { createError } from '../base/errors.js';
import { formatList } from '../base/format.js';
import type { Tensor } from '../cache/slots.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { Dtype } from '../base/dtypes.js';
import { ownerOf, type Layout } from '../layout/layout.js';
import type { ReadRules } from './attention-rules.js';
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
  readonly rules: ReadRules | undefined;
}

/** Options of the kernels that are of a layer; an array has one of each layer. */
interface LayerOptions {
  readonly queryHeads?: number | readonly number[] | undefined;
  readonly scale?: number | undefined;
  readonly attention?: ReadRules | readonly (ReadRules | undefined)[] | undefined;
}

/** As native: `kMostDim` of kernels/cuda/parameters.h. */
const mostDeviceDim = 256;

/** Types of K and V that attention reads. */
export const attendable: readonly Dtype[] = ['float32', 'float16', 'bfloat16'];

export class KernelLayers {
  readonly cacheDtype: Dtype;
  readonly #cache: KvCache;
  readonly #layers: readonly KernelLayer[];
  /** Positions in `#layers` by the layers' numbers in the whole model. */
  readonly #positions: ReadonlyMap<number, number>;

  /**
   * Throws KV_INVALID_OPTION unless every layer's query heads are a multiple of its KV heads, and it has as many sinks.
   */
  constructor(cache: KvCache, { queryHeads, scale, attention }: LayerOptions) {
    this.#cache = cache;
    this.cacheDtype = cache.tensors[0]!.dtype;
    const keys = cache.tensors.filter(({ role }) => role === 'key');
    const values = cache.tensors.filter(({ role }) => role === 'value');
    this.#positions = new Map(keys.map(({ layer }, position) => [layer, position]));
    checkCount('queryHeads', queryHeads, keys.length, 'one number per layer');
    checkCount('attention', attention, keys.length, 'the rules of each layer');
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
      const option = isList(attention) ? `attention[${index}]` : 'attention';
      const rules = withinSet(isList(attention) ? attention[index] : attention, cache.layout, key.layer, option);
      this.#checkSinks(rules, heads, `${option}.sinks`);
      return {
        keys: key, values: values[index]!, queryHeads: heads, kvHeads: key.heads, dim: key.dim,
        valueDim: values[index]!.dim, scale: scale ?? 1 / Math.sqrt(key.dim), rules,
      };
    });
  }

  /**
   * Returns the position here of a layer, given its number in the whole model. Throws KV_INVALID_OPTION when it has no
   * K and V on this worker, or when the kernels have no attention for the cache's dtype.
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
    const position = this.#positions.get(layer);
    if (position !== undefined) return position;
    const numbers = [...this.#positions.keys()];
    const of = ownerOf(this.#cache.layout, layer);
    throw createError('KV_INVALID_OPTION', {
      reason: typeof layer === 'number' ? 'range' : 'type', owner, option: 'layer', received: layer,
      expected: of === undefined ? `an integer from ${Math.min(...numbers)} to ${Math.max(...numbers)}`
        : `a layer with K and V of its own, such as ${of}, whose K and V layer ${layer} reads`,
    });
  }

  at(index: number): LayerShape {
    return this.#layers[index]!;
  }

  /**
   * Flattens them for native/addon/kernels_binding.cc: 19 numbers per layer, three per reservation, and the sinks that
   * have no address.
   */
  numbers(): { readonly layers: Float64Array; readonly regions: Float64Array; readonly sinks: Float64Array } {
    const { layout, tensors } = this.#cache;
    const all: number[] = [];
    const layers = this.#layers.flatMap(({ keys, values, queryHeads, scale, rules }) => {
      const { windowTokens = 0, chunkTokens = 0, softcap = 0, sinks } = rules ?? {};
      const address = typeof sinks === 'bigint' ? Number(sinks) : 0;
      const place = typeof sinks === 'object' ? all.length : -1;
      if (typeof sinks === 'object') all.push(...sinks);
      return [
        ...tensorNumbers(keys), ...tensorNumbers(values), queryHeads, scale,
        windowTokens, chunkTokens, softcap, address, place,
      ];
    });
    const regions = layout.reservations.flatMap(({ tokenBytes, slotStrideBytes }, reservation) => {
      const first = tensors.find((tensor) => tensor.reservation === reservation)!;
      return [Number(first.address) - first.offsetBytes, slotStrideBytes, tokenBytes];
    });
    return { layers: Float64Array.from(layers), regions: Float64Array.from(regions), sinks: Float64Array.from(all) };
  }

  #checkSinks(rules: ReadRules | undefined, queryHeads: number, option: string): void {
    const sinks = rules?.sinks;
    if (typeof sinks !== 'object') return;
    if (kernelsOf(this.#cache.driver) === 'cuda') {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner: 'Kernels', option, expected: 'the address of device memory, a bigint',
        received: Float32Array.from(sinks),
      });
    }
    if (sinks.length !== queryHeads) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'Kernels', option, expected: `one number per query head (${queryHeads})`,
        received: sinks.length,
      });
    }
  }
}

/**
 * The rules of a layer, which see no more than its layer set keeps: where they say neither window nor chunk, as much.
 * Throws KV_INVALID_OPTION where they would read tokens that the cache has let go of.
 */
function withinSet(
  rules: ReadRules | undefined, { sets }: Layout, layer: number, option: string,
): ReadRules | undefined {
  const { kind, windowTokens, chunkTokens = 0 } = sets.find(({ layers }) => layers.includes(layer))!;
  if (kind === 'full') return rules;
  const { windowTokens: window, chunkTokens: chunk, softcap, sinks } = rules ?? {};
  if (window === undefined && chunk === undefined) {
    return { windowTokens, chunkTokens: chunkTokens || undefined, softcap, sinks };
  }
  const isWithin = windowTokens === undefined ? chunk !== undefined && chunkTokens % chunk === 0
    : (window ?? chunk!) <= windowTokens;
  if (isWithin) return rules;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'Kernels', option,
    expected: windowTokens === undefined ? `chunks that ${chunkTokens} is a multiple of`
      : `a window of up to ${windowTokens} tokens`,
    received: window ?? chunk,
    hint: `The cache keeps no more of layer ${layer} (\`model.layerSets\`).`,
  });
}

const isList = <T>(value: T | readonly T[] | undefined): value is readonly T[] => Array.isArray(value);

function checkCount(option: string, value: unknown, layers: number, expected: string): void {
  if (!Array.isArray(value) || value.length === layers) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'Kernels', option, expected: `${expected} (${layers})`, received: value.length,
  });
}

function tensorNumbers({ address, strides, heads, dim }: Tensor): number[] {
  return [Number(address), strides.slotBytes, strides.tokenBytes, strides.headBytes, heads, dim];
}
