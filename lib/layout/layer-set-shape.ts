// Layer sets: which layers of a model keep the same part of a text. A model is cut into them where its layers differ in
// that: full attention keeps every token, a sliding window or a chunk the last ones, a recurrent layer a state. Checks
// that every layer is in exactly one set. Pure; set-layout.ts has the rows of a set.

import { sideDtypes, type SideDtype } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { formatCount } from '../base/format.js';
import {
  arrayOf, integer, isOptionsObject, nested, oneOf, optional, string, withDefault, type Field, type FieldPlace,
  type OptionsOf,
} from '../base/options.js';
import { layoutChoices, type LayoutKind } from './set-layout.js';

/** What the layers of a set have in common, where it differs from the model. */
export interface LayerSetHeads {
  /** Numbers of the set's layers, in any order, each in one set only. */
  readonly layers: readonly number[];
  /** KV heads of a layer. Default: the model's. */
  readonly kvHeads?: number | undefined;
  /** Elements of a K head. Default: the model's. */
  readonly headDim?: number | undefined;
  /** Elements of a V head. Default: the model's, else `headDim`. */
  readonly valueHeadDim?: number | undefined;
}

/** Layers that see the whole text. A model has at most one such set. */
export interface FullSetShape extends LayerSetHeads {
  /** Says which of the sets it is. */
  readonly kind: 'full';
  /** How its tensors share reservations; `auto`: by the rule of `LayoutOptions`. Default: the cache's `layout`. */
  readonly layout?: LayoutKind | 'auto' | undefined;
}

/** Layers in which a token sees the last `windowTokens` tokens, itself included. */
export interface WindowSetShape extends LayerSetHeads {
  /** Says which of the sets it is. */
  readonly kind: 'window';
  /** At least 1. */
  readonly windowTokens: number;
  /**
   * How its tensors share reservations; `auto`: the first of `per-layer` and `sliced` that takes at most 1.5 times the
   * bytes of the window, else `fused`. Default `auto`.
   */
  readonly layout?: LayoutKind | 'auto' | undefined;
}

/** Layers in which a token sees the tokens since the last multiple of `chunkTokens`. */
export interface ChunkSetShape extends LayerSetHeads {
  /** Says which of the sets it is. */
  readonly kind: 'chunk';
  /** At least 1. */
  readonly chunkTokens: number;
  /** As for a window. Default `auto`. */
  readonly layout?: LayoutKind | 'auto' | undefined;
}

/** One tensor of a layer's state. */
export interface StateTensorShape {
  /** `conv`, `recurrent`. */
  readonly name: string;
  /** Its axes in the whole model; tensor-parallel workers divide its elements. */
  readonly shape: readonly number[];
  /** Type of its elements. */
  readonly dtype: SideDtype;
}

/** Layers that keep a state of fixed size in place of tokens. */
export interface StateSetShape {
  /** Says which of the sets it is. */
  readonly kind: 'state';
  /** Numbers of the set's layers. */
  readonly layers: readonly number[];
  /** The tensors of one layer's state. */
  readonly tensors: readonly StateTensorShape[];
  /** Copies that a sequence has of its states: a pass reads one and writes the next. Default 2. */
  readonly faces?: number | undefined;
}

/** Layers whose K and V are of a fixed number of tokens, written once (cross-attention). */
export interface FixedSetShape extends LayerSetHeads {
  /** Says which of the sets it is. */
  readonly kind: 'fixed';
  /** Tokens of a sequence in these layers, at least 1. */
  readonly tokens: number;
}

/** Layers that read the K and V of other layers and keep none. */
export interface SharedSetShape {
  /** Says which of the sets it is. */
  readonly kind: 'shared';
  /** Numbers of the set's layers. */
  readonly layers: readonly number[];
  /** The layer whose K and V they read; or one for each of `layers`, in the same order. */
  readonly of: number | readonly number[];
}

/** Layers that keep the same part of a text. */
export type LayerSetShape =
  | FullSetShape | WindowSetShape | ChunkSetShape | StateSetShape | FixedSetShape | SharedSetShape;

// Far beyond any model: a larger number is a mistake.
const maxSize = 2 ** 20;
export const maxLayers = 2 ** 16;

/** Heads, dims and workers. */
export const size = integer({ min: 1, max: maxSize });

/** The number of a model's layers. */
export const layerCount = integer({ min: 1, max: maxLayers });

const tokens = integer({ min: 1 });
const layer = integer({ max: maxLayers - 1 });
const layers = filled(arrayOf(layer), 'layer');
const heads = { layers, kvHeads: optional(size), headDim: optional(size), valueHeadDim: optional(size) };
const kindOf = <const K extends LayerSetShape['kind']>(kind: K): Field<K> => oneOf([kind]);
const layout = optional(oneOf(layoutChoices));

/** The fields of a set, by its kind. */
const specs = {
  full: { kind: kindOf('full'), ...heads, layout },
  window: { kind: kindOf('window'), ...heads, windowTokens: tokens, layout },
  chunk: { kind: kindOf('chunk'), ...heads, chunkTokens: tokens, layout },
  state: {
    kind: kindOf('state'), layers,
    tensors: filled(arrayOf(nested({
      name: string, shape: filled(arrayOf(size), 'axis'), dtype: oneOf(sideDtypes),
    })), 'tensor'),
    faces: withDefault(integer({ min: 1, max: maxSize }), 2),
  },
  fixed: { kind: kindOf('fixed'), ...heads, tokens },
  shared: { kind: kindOf('shared'), layers, of: ownerField },
};

const kinds = Object.keys(specs) as readonly LayerSetShape['kind'][];

/** A set whose fields have been read. */
export type ReadLayerSet = { [K in keyof typeof specs]: OptionsOf<(typeof specs)[K]> }[keyof typeof specs];

/** One element of `model.layerSets`, read by its kind. */
export const layerSetField: Field<ReadLayerSet> = (value, place) => {
  if (!isOptionsObject(value)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: "an object such as `{ kind: 'full', layers: [0] }`", received: value,
    });
  }
  const given = Object.hasOwn(value, 'kind') ? (value as { kind?: unknown }).kind : undefined;
  const kind = oneOf(kinds)(given, { ...place, option: `${place.option}.kind` });
  return nested(specs[kind])(value, place) as ReadLayerSet;
};

/** An array with an element. */
function filled<T>(field: Field<readonly T[]>, noun: string): Field<readonly T[]> {
  return (value, place) => {
    const read = field(value, place);
    if (read.length > 0) return read;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', ...place, expected: `an array with at least one ${noun}`, received: value,
    });
  };
}

function ownerField(value: unknown, place: FieldPlace): number | readonly number[] {
  return Array.isArray(value) ? arrayOf(layer)(value, place) : layer(value, place);
}

/**
 * The position in `sets` of each layer's set. Throws KV_INVALID_SHAPE unless each of the model's `count` layers is in
 * exactly one, and KV_INVALID_OPTION for a layer that does not exist and for a second full set.
 */
export function setOfLayers(sets: readonly ReadLayerSet[], count: number): readonly number[] {
  const setOf = new Array<number | undefined>(count).fill(undefined);
  sets.forEach((set, index) => {
    const full = sets.findIndex(({ kind }) => kind === 'full');
    if (set.kind === 'full' && full !== index) throw secondFullSet(full, index);
    set.layers.forEach((number, place) => {
      const option = `layerSets[${index}].layers[${place}]`;
      integer({ max: count - 1, hint: `\`layers\` is ${count}.` })(number, { owner: 'model', option });
      const other = setOf[number];
      if (other !== undefined) {
        throw createError('KV_INVALID_SHAPE', {
          option, value: number, problem: `that layer is in \`layerSets[${other}]\` already`,
          hint: 'Give each layer to one set.',
        });
      }
      setOf[number] = index;
    });
  });
  const missing = setOf.indexOf(undefined);
  if (missing === -1) return setOf as number[];
  throw createError('KV_INVALID_SHAPE', {
    option: 'layers', value: count, problem: `layer ${missing} is in none of \`layerSets\``,
    hint: 'Give each layer to one set.',
  });
}

/** The layer sets of a model by what each layer's tokens see: `tokens` are those of its window or its chunk. */
export function layerSetsOf(
  seen: readonly { readonly kind: 'full' | 'window' | 'chunk'; readonly tokens: number }[],
): LayerSetShape[] {
  const layersOf = new Map<string, number[]>();
  seen.forEach(({ kind, tokens }, layer) => {
    const key = `${kind} ${tokens}`;
    layersOf.set(key, [...layersOf.get(key) ?? [], layer]);
  });
  return [...layersOf.values()].map((layers): LayerSetShape => {
    const { kind, tokens } = seen[layers[0]!]!;
    if (kind === 'full') return { kind, layers };
    return kind === 'window' ? { kind, layers, windowTokens: tokens } : { kind, layers, chunkTokens: tokens };
  });
}

function secondFullSet(first: number, second: number): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'model', option: `layerSets[${second}].kind`, received: 'full',
    expected: `another kind, as \`layerSets[${first}]\` is the full set`,
    hint: 'Give its layers to that set; `layerShapes` says how single layers differ.',
  });
}

/**
 * The layer whose K and V each of a shared set's layers reads. Throws KV_INVALID_SHAPE where there is not one for each,
 * or where a layer that is named keeps no K and V.
 */
export function ownersOf(
  { layers, of }: Extract<ReadLayerSet, { kind: 'shared' }>, set: number,
  kindOfLayer: (layer: number) => ReadLayerSet['kind'], count: number,
): ReadonlyMap<number, number> {
  const option = `layerSets[${set}].of`;
  if (typeof of !== 'number' && of.length !== layers.length) {
    throw createError('KV_INVALID_SHAPE', {
      option: `${option}.length`, value: of.length, problem: `\`layers\` has ${formatCount('layer', layers.length)}`,
      hint: 'Give the owner of each layer, or one number for all.',
    });
  }
  return new Map(layers.map((reader, place) => {
    const owner = typeof of === 'number' ? of : of[place]!;
    integer({ max: count - 1, hint: `\`layers\` is ${count}.` })(owner, { owner: 'model', option });
    const kind = kindOfLayer(owner);
    if (kind !== 'state' && kind !== 'shared') return [reader, owner] as const;
    throw createError('KV_INVALID_SHAPE', {
      option, value: owner, problem: `that layer is in a set of kind '${kind}', which keeps no K and V`,
      hint: 'Name a layer of a full, window, chunk or fixed set.',
    });
  }));
}
