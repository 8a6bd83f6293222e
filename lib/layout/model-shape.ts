// Model shape: which K and V tensors the attention layers of a model keep per token, and which of them this worker
// holds. Pure arithmetic on plain objects: no memory, no driver. layout.ts places the tensors.

import { dtypeBytes, dtypes, type Dtype, type TensorSpec } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { formatCount, formatList } from '../base/format.js';
import {
  arrayOf, integer, isOptionsObject, nested, oneOf, optional, readOptions, string, withDefault, type FieldSpec,
  type OptionsOf,
} from '../base/options.js';

/** How one layer differs from the model; omitted numbers are the model's. */
export interface LayerShape {
  /** KV heads of the layer, 1 or more. Default: the model's. */
  readonly kvHeads?: number | undefined;
  /** Elements of a K head, 1 or more. Default: the model's. */
  readonly headDim?: number | undefined;
  /** Elements of a V head, 1 or more. Default: `headDim`. */
  readonly valueHeadDim?: number | undefined;
}

/** How the model is divided over workers. */
export interface ParallelShape {
  /** Workers that share every layer's KV heads. Default 1. */
  readonly tensor?: number | undefined;
  /**
   * Which of the `tensor` workers this is, 0 … tensor − 1. Their tensors look alike: text in tiers that outlive the
   * process is found by it, so such tiers need it where there are several workers and heads to divide. Default: not
   * said.
   */
  readonly tensorRank?: number | undefined;
  /**
   * Workers that share the layers; when the layers do not divide evenly, the first workers have one more. Default 1.
   */
  readonly pipeline?: number | undefined;
  /**
   * Which of the `pipeline` workers this is, 0 … pipeline − 1. Default 0, which never has fewer layers than another.
   */
  readonly pipelineRank?: number | undefined;
}

/** The whole model, before it is divided over workers. Heads and dims are 1 … 1,048,576. */
export interface ModelShape {
  /** Layers that keep K and V, 1 … 65,536. */
  readonly layers: number;
  /** KV heads of a layer: 1 is MQA, fewer than the query heads GQA, as many MHA. Not used by `latent` attention. */
  readonly kvHeads?: number | undefined;
  /** Elements of one head's K, and of its V unless `valueHeadDim` differs. Not used by `latent` attention. */
  readonly headDim?: number | undefined;
  /** Type of the elements of K and V. */
  readonly dtype: Dtype;
  /** Elements of one head's V. Default: the layer's `headDim`. */
  readonly valueHeadDim?: number | undefined;
  /**
   * `key-value`: a K and a V tensor per layer. `latent` (MLA): one tensor [latentDim] per layer. Default
   * `key-value`.
   */
  readonly attention?: 'key-value' | 'latent' | undefined;
  /** Elements that MLA keeps per token and layer: latent and rotary part together (DeepSeek V3: 512 + 64 = 576). */
  readonly latentDim?: number | undefined;
  /** One entry per layer, where layers differ. */
  readonly layerShapes?: readonly LayerShape[] | undefined;
  /**
   * Names the weights, for tiers: text of other weights is never found. `LlamaModel.shape()` gives a digest of its.
   * `prefixCache.modelId` goes before it. Default: nothing is said.
   */
  readonly identity?: string | undefined;
  /** Which part of the model this worker has. Default: all of it. */
  readonly parallel?: ParallelShape | undefined;
}

// Far beyond any model. A larger number is a mistake, and would fill this process's memory with names of tensors.
const maxLayers = 2 ** 16;
const maxSize = 2 ** 20;

const size = integer({ min: 1, max: maxSize });

const spec = {
  layers: integer({ min: 1, max: maxLayers }),
  kvHeads: optional(size),
  headDim: optional(size),
  dtype: oneOf(dtypes),
  valueHeadDim: optional(size),
  attention: withDefault(oneOf(['key-value', 'latent']), 'key-value'),
  latentDim: optional(size),
  layerShapes: optional(arrayOf(nested({
    kvHeads: optional(size), headDim: optional(size), valueHeadDim: optional(size),
  }))),
  identity: optional(string),
  parallel: nested({
    tensor: withDefault(size, 1),
    tensorRank: optional(integer()),
    pipeline: withDefault(size, 1),
    pipelineRank: withDefault(integer(), 0),
  }),
} satisfies FieldSpec;

/** The fields of a model, each read once, which `tensorsOf` takes for the model. Throws KV_INVALID_OPTION. */
export function readModelShape(model: ModelShape): OptionsOf<typeof spec> {
  if (!isOptionsObject(model)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'model', option: 'model',
      expected: 'an object such as `{ layers, kvHeads, headDim, dtype }`', received: model,
    });
  }
  return readOptions('model', model, spec);
}

/**
 * Returns the tensors of this worker, in layer order, K before V. Every tensor-parallel worker holds MLA's latent
 * tensor whole; where workers outnumber KV heads, several workers hold the same head. Throws KV_INVALID_SHAPE when the
 * model cannot be divided that way, KV_INVALID_OPTION when a field is missing or wrong.
 */
export function tensorsOf(model: ModelShape): TensorSpec[] {
  const { layers, dtype, attention, latentDim, layerShapes, parallel, ...whole } = readModelShape(model);

  if (layerShapes !== undefined && layerShapes.length !== layers) {
    throw createError('KV_INVALID_SHAPE', {
      option: 'layers', value: layers,
      problem: `\`layerShapes\` has ${formatCount('entry', layerShapes.length, 'entries')}`,
      hint: 'Give one entry per layer, `{}` for a layer that does not differ from the model.',
    });
  }
  const tensors: TensorSpec[] = [];
  const add = (layer: number, role: TensorSpec['role'], heads: number, dim: number): void => {
    const tokenBytes = heads * dim * dtypeBytes(dtype);
    tensors.push({ name: `layer.${layer}.${role}`, layer, role, heads, dim, dtype, tokenBytes });
  };
  if (parallel.tensorRank !== undefined) {
    integer({ max: parallel.tensor - 1 })(parallel.tensorRank, { owner: 'model', option: 'parallel.tensorRank' });
  }
  const { first, end } = layersOfWorker(layers, parallel.pipeline, parallel.pipelineRank);
  for (let layer = first; layer < end; layer += 1) {
    if (attention === 'latent') {
      size(latentDim, { owner: 'model', option: 'latentDim' });
      add(layer, 'latent', 1, latentDim!);
      continue;
    }
    const shape: LayerShape = layerShapes?.[layer] ?? {};
    const headDim = size(shape.headDim ?? whole.headDim, { owner: 'model', option: 'headDim' });
    const kvHeads = size(shape.kvHeads ?? whole.kvHeads, { owner: 'model', option: 'kvHeads' });
    const heads = headsOfWorker(kvHeads, parallel.tensor);
    add(layer, 'key', heads, headDim);
    add(layer, 'value', heads, shape.valueHeadDim ?? whole.valueHeadDim ?? headDim);
  }
  return tensors;
}

function headsOfWorker(kvHeads: number, workers: number): number {
  if (kvHeads % workers === 0) return kvHeads / workers;
  if (workers % kvHeads === 0) return 1; // replicated
  const divisors = Array.from({ length: kvHeads }, (_, index) => index + 1).filter((count) => kvHeads % count === 0);
  throw createError('KV_INVALID_SHAPE', {
    option: 'kvHeads', value: kvHeads, problem: `cannot be divided over ${workers} tensor-parallel workers`,
    hint: `Use ${formatList(divisors)}.`,
  });
}

function layersOfWorker(layers: number, workers: number, rank: number): { first: number; end: number } {
  if (workers > layers) {
    throw createError('KV_INVALID_SHAPE', {
      option: 'layers', value: layers, problem: `cannot be divided over ${workers} pipeline-parallel workers`,
      hint: `Use at most ${layers}.`,
    });
  }
  integer({ max: workers - 1 })(rank, { owner: 'model', option: 'parallel.pipelineRank' });
  const each = Math.floor(layers / workers);
  const longer = layers % workers;
  const first = rank * each + Math.min(rank, longer);
  return { first, end: first + each + (rank < longer ? 1 : 0) };
}
