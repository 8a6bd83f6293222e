// Cache layers: the tensors of one layer, as an engine's kernels address them: strides in elements, and views by
// sequence. Made once when the cache opens; the memory is the slots'.

import type { Dtype, TensorSpec, TensorView } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { Sequence } from '../cache/sequence.js';
import type { SlotMemory, Tensor } from '../cache/slots.js';
import { ownerOf } from '../layout/layout.js';

/** Distances in elements between neighbours along each axis of a tensor; elements of a head lie side by side. */
export interface ElementStrides {
  /** Elements from a slot to the next. */
  readonly slot: number;
  /** Elements from a token to the next. */
  readonly token: number;
  /** Elements from a head to the next. */
  readonly head: number;
}

/** One tensor of a layer: element [slot, token, head, i] is the sum of three indices times their strides, and i. */
export interface LayerTensor {
  /** Position in `cache.tensors`. */
  readonly index: number;
  /** Address of element [0, 0, 0, 0]. */
  readonly address: bigint;
  /** Heads on this worker. */
  readonly heads: number;
  /** Elements of a head. */
  readonly dim: number;
  /** Type of its elements. */
  readonly dtype: Dtype;
  /** Elements from one slot, token and head to the next. */
  readonly strides: ElementStrides;
  /** As `Sequence.address`: address of the sequence's first token. */
  addressOf(sequence: Sequence): bigint;
  /** As `Sequence.view` (host only): element [token, head, i] is at token · strides.token + head · strides.head + i. */
  view(sequence: Sequence): TensorView;
}

/**
 * What a layer keeps: K and V, or the latent of MLA; of a shared set nothing. What it does not keep throws
 * KV_INVALID_SHAPE.
 */
export interface CacheLayer {
  /** Its K. */
  readonly key: LayerTensor;
  /** Its V. */
  readonly value: LayerTensor;
  /** Its latent tensor, in the place of K and V. */
  readonly latent: LayerTensor;
}

const roles: readonly TensorSpec['role'][] = ['key', 'value', 'latent'];

/** The layers of this worker by their number in the whole model. */
export function layersOf(memory: SlotMemory): ReadonlyMap<number, CacheLayer> {
  const layers = new Map<number, CacheLayer>();
  for (const tensor of memory.tensors) {
    const layer = layers.get(tensor.layer) ?? {} as CacheLayer;
    Object.defineProperty(layer, tensor.role, { enumerable: true, value: layerTensor(memory, tensor) });
    layers.set(tensor.layer, layer);
  }
  const shared = memory.layout.constantSets.flatMap((set) => (set.kind === 'shared' ? set.layers : []));
  for (const number of shared) layers.set(number, {} as CacheLayer);
  for (const [number, layer] of layers) refuseOthers(number, layer, ownerOf(memory.layout, number));
  return layers;
}

/** @param owner The layer whose K and V it reads in place of its own. */
function refuseOthers(number: number, layer: CacheLayer, owner: number | undefined): void {
  const kept = Object.keys(layer).map((role) => `\`${role}\``).join(' and ');
  const hint = owner === undefined ? `It keeps ${kept}.` : `It reads the K and V of layer ${owner}.`;
  for (const role of roles) {
    if (Object.hasOwn(layer, role)) continue;
    Object.defineProperty(layer, role, {
      get: () => {
        throw createError('KV_INVALID_SHAPE', {
          option: 'layer', value: number, problem: `keeps no \`${role}\``, hint,
        });
      },
    });
  }
  Object.freeze(layer);
}

function layerTensor(memory: SlotMemory, { index, address, heads, dim, dtype, strides }: Tensor): LayerTensor {
  const { slotBytes, tokenBytes, headBytes, elementBytes } = strides;
  return Object.freeze({
    index, address, heads, dim, dtype,
    strides: Object.freeze({
      slot: slotBytes / elementBytes, token: tokenBytes / elementBytes, head: headBytes / elementBytes,
    }),
    addressOf: (sequence: Sequence) =>
      memory.address(Sequence.slotIn(memory.slots, sequence, 'LayerTensor.addressOf'), index),
    view: (sequence: Sequence) => memory.view(Sequence.slotIn(memory.slots, sequence, 'LayerTensor.view'), index),
  });
}
