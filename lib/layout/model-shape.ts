// Model shape: which K and V tensors the attention layers of a model keep per token, and which of them this worker
// holds, by layer sets. Pure arithmetic on plain objects: no memory, no driver. layout.ts places the tensors.

import { dtypeBytes, dtypes, sideDtypeBytes, type Dtype, type TensorSpec } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { formatCount, formatList } from '../base/format.js';
import {
  arrayOf, integer, isOptionsObject, nested, oneOf, optional, readOptions, string, withDefault, type FieldSpec,
  type OptionsOf,
} from '../base/options.js';
import {
  layerCount, layerSetField, ownersOf, setOfLayers, size, type LayerSetShape, type ReadLayerSet,
} from './layer-set-shape.js';
import type { LayoutKind, SetNeed } from './set-layout.js';

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
  /** Layers that keep K and V, or what `layerSets` say, 1 … 65,536. */
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
  /**
   * MLA with an index (DeepSeek V3.2): elements of the index key that layers of full attention keep per token besides.
   * Default: none.
   */
  readonly indexDim?: number | undefined;
  /** One entry per layer, where layers differ. */
  readonly layerShapes?: readonly LayerShape[] | undefined;
  /**
   * Which layers keep the same part of a text; each of `layers` is in exactly one set. Numbers of a set go before the
   * model's, those of `layerShapes` before both. Default: all layers keep every token.
   */
  readonly layerSets?: readonly LayerSetShape[] | undefined;
  /**
   * Names the weights, for tiers: text of other weights is never found. `LlamaModel.shape()` gives a digest of its.
   * `prefixCache.modelId` goes before it. Default: nothing is said.
   */
  readonly identity?: string | undefined;
  /** Which part of the model this worker has. Default: all of it. */
  readonly parallel?: ParallelShape | undefined;
}

const spec = {
  layers: layerCount,
  kvHeads: optional(size),
  headDim: optional(size),
  dtype: oneOf(dtypes),
  valueHeadDim: optional(size),
  attention: withDefault(oneOf(['key-value', 'latent']), 'key-value'),
  latentDim: optional(size),
  indexDim: optional(size),
  layerShapes: optional(arrayOf(nested({
    kvHeads: optional(size), headDim: optional(size), valueHeadDim: optional(size),
  }))),
  layerSets: optional(arrayOf(layerSetField)),
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
 * Returns the tensors of this worker whose tokens have rows, in layer order, K before V: those of full, window and
 * chunk sets. Every tensor-parallel worker holds MLA's latent and its index whole; where workers outnumber KV heads,
 * several workers hold the same head. Throws KV_INVALID_SHAPE when the model cannot be divided that way,
 * KV_INVALID_OPTION when a field is missing or wrong.
 */
export function tensorsOf(model: ModelShape): TensorSpec[] {
  return workerShape(model).tensors;
}

/** A set of this worker whose tokens have rows. */
export interface RowSet {
  readonly need: SetNeed;
  /** Ascending. */
  readonly layers: readonly number[];
  /** Positions in `WorkerShape.tensors`. */
  readonly tensors: readonly number[];
  /** What the model says of its layout. */
  readonly layout: LayoutKind | 'auto' | undefined;
  /** Where it says so, for errors. */
  readonly option: string;
}

/** A set of this worker in which nothing grows. */
export interface ConstantSet {
  readonly kind: 'state' | 'fixed' | 'shared';
  readonly layers: readonly number[];
  /** Of a shared set: whose K and V each of `layers` reads. */
  readonly owners: readonly number[] | undefined;
  readonly faces: number;
  readonly faceBytes: number;
}

/** This worker's part of a model. */
export interface WorkerShape {
  /** Of all sets with rows, in layer order, K before V. */
  readonly tensors: TensorSpec[];
  /** The full set first, where there is one; never empty. Sets without a layer on this worker are left out. */
  readonly sets: readonly RowSet[];
  readonly constantSets: readonly ConstantSet[];
}

type ReadModel = OptionsOf<typeof spec>;

/** Cuts a model into this worker's tensors and sets. Throws as `tensorsOf`, which is a part of it. */
export function workerShape(shape: ModelShape): WorkerShape {
  const model = readModelShape(shape);
  const { layers, layerShapes, parallel } = model;
  if (model.indexDim !== undefined && model.attention !== 'latent') throw indexWithoutLatent(model.indexDim);
  if (layerShapes !== undefined && layerShapes.length !== layers) {
    throw createError('KV_INVALID_SHAPE', {
      option: 'layers', value: layers,
      problem: `\`layerShapes\` has ${formatCount('entry', layerShapes.length, 'entries')}`,
      hint: 'Give one entry per layer, `{}` for a layer that does not differ from the model.',
    });
  }
  const given: readonly ReadLayerSet[] = model.layerSets ?? [oneFullSet(layers)];
  const setOf = setOfLayers(given, layers);
  if (parallel.tensorRank !== undefined) {
    integer({ max: parallel.tensor - 1 })(parallel.tensorRank, { owner: 'model', option: 'parallel.tensorRank' });
  }
  const worker = layersOfWorker(layers, parallel.pipeline, parallel.pipelineRank);
  const isHere = (layer: number): boolean => layer >= worker.first && layer < worker.end;
  const tensors: TensorSpec[] = [];
  const own = given.map(() => [] as number[]);
  const fixed = given.map(() => 0);
  for (let layer = worker.first; layer < worker.end; layer += 1) {
    const index = setOf[layer]!;
    const set = given[index]!;
    if (set.kind === 'state' || set.kind === 'shared') continue;
    for (const tensor of tensorsOfLayer(layer, model, set)) {
      if (set.kind === 'fixed') fixed[index]! += set.tokens * tensor.tokenBytes;
      else own[index]!.push(tensors.push(tensor) - 1);
    }
  }
  const sets: RowSet[] = [];
  const constantSets: ConstantSet[] = [];
  given.forEach((set, index) => {
    const here = set.layers.filter(isHere).sort((a, b) => a - b);
    const constant = { layers: here, owners: undefined, faces: 0, faceBytes: 0 };
    switch (set.kind) {
      case 'shared': {
        const owners = ownersOf(set, index, (layer) => given[setOf[layer]!]!.kind, layers);
        if (here.length > 0) {
          constantSets.push({ ...constant, kind: 'shared', owners: ownersHere(here, owners, index, isHere) });
        }
        break;
      }
      case 'state':
        if (here.length > 0) {
          const faceBytes = here.length * stateBytes(set, index, parallel.tensor);
          constantSets.push({ ...constant, kind: 'state', faces: set.faces, faceBytes });
        }
        break;
      case 'fixed':
        if (here.length > 0) constantSets.push({ ...constant, kind: 'fixed', faces: 1, faceBytes: fixed[index]! });
        break;
      case 'full':
      case 'window':
      case 'chunk':
        if (here.length > 0) {
          sets[set.kind === 'full' ? 'unshift' : 'push']({
            need: needOf(set), layers: here, tensors: own[index]!, layout: set.layout,
            option: `layerSets[${index}].layout`,
          });
        }
    }
  });
  if (sets.length > 0) return { tensors, sets, constantSets };
  throw createError('KV_INVALID_SHAPE', {
    option: 'layers', value: layers, problem: 'none of those on this worker keeps tokens of a sequence',
    hint: 'Give `layerSets` a full, window or chunk set, and fewer pipeline-parallel workers where it has one.',
  });
}

function indexWithoutLatent(indexDim: number): Error {
  return createError('KV_INVALID_SHAPE', {
    option: 'indexDim', value: indexDim, problem: "`attention` is not 'latent'",
    hint: "Give `attention: 'latent'` and `latentDim`, or leave it out.",
  });
}

function oneFullSet(layers: number): ReadLayerSet {
  return {
    kind: 'full', layers: Array.from({ length: layers }, (_, layer) => layer), kvHeads: undefined, headDim: undefined,
    valueHeadDim: undefined, layout: undefined,
  };
}

function needOf(set: Extract<ReadLayerSet, { kind: 'full' | 'window' | 'chunk' }>): SetNeed {
  switch (set.kind) {
    case 'full':
      return { kind: 'full' };
    case 'window':
      return { kind: 'window', windowTokens: set.windowTokens };
    case 'chunk':
      return { kind: 'chunk', chunkTokens: set.chunkTokens };
  }
}

/** The tensors of a layer of this worker. A layer's own numbers go first, then its set's, then the model's. */
function tensorsOfLayer(
  layer: number, { dtype, attention, latentDim, indexDim, layerShapes, parallel, ...whole }: ReadModel,
  set: Exclude<ReadLayerSet, { kind: 'state' | 'shared' }>,
): TensorSpec[] {
  const tensor = (role: TensorSpec['role'], heads: number, dim: number): TensorSpec => {
    const tokenBytes = heads * dim * dtypeBytes(dtype);
    return { name: `layer.${layer}.${role}`, layer, role, heads, dim, dtype, tokenBytes };
  };
  if (attention === 'latent') {
    size(latentDim, { owner: 'model', option: 'latentDim' });
    const latent = tensor('latent', 1, latentDim!);
    return indexDim === undefined || set.kind !== 'full' ? [latent] : [latent, tensor('index', 1, indexDim)];
  }
  const own: LayerShape = layerShapes?.[layer] ?? {};
  const headDim = size(own.headDim ?? set.headDim ?? whole.headDim, { owner: 'model', option: 'headDim' });
  const kvHeads = size(own.kvHeads ?? set.kvHeads ?? whole.kvHeads, { owner: 'model', option: 'kvHeads' });
  const heads = headsOfWorker(kvHeads, parallel.tensor);
  const valueHeadDim = own.valueHeadDim ?? set.valueHeadDim ?? whole.valueHeadDim ?? headDim;
  return [tensor('key', heads, headDim), tensor('value', heads, valueHeadDim)];
}

/** Bytes of one layer's state on this worker. */
function stateBytes({ tensors }: Extract<ReadLayerSet, { kind: 'state' }>, set: number, workers: number): number {
  let bytes = 0;
  tensors.forEach(({ shape, dtype }, index) => {
    const elements = shape.reduce((product, axis) => product * axis, 1);
    if (elements % workers !== 0) {
      throw createError('KV_INVALID_SHAPE', {
        option: `layerSets[${set}].tensors[${index}].shape`, value: elements,
        problem: `cannot be divided over ${workers} tensor-parallel workers`,
        hint: 'Use as many workers as divide its heads.',
      });
    }
    bytes += (elements / workers) * sideDtypeBytes(dtype);
  });
  return bytes;
}

/** The owners of a shared set's `layers` on this worker. Throws KV_INVALID_SHAPE for an owner on another one. */
function ownersHere(
  layers: readonly number[], owners: ReadonlyMap<number, number>, set: number, isHere: (layer: number) => boolean,
): readonly number[] {
  return layers.map((layer) => {
    const owner = owners.get(layer)!;
    if (isHere(owner)) return owner;
    throw createError('KV_INVALID_SHAPE', {
      option: `layerSets[${set}].of`, value: owner,
      problem: `that layer is on another pipeline-parallel worker than layer ${layer}, which reads its K and V`,
      hint: 'Use fewer pipeline-parallel workers.',
    });
  });
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
