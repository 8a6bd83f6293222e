// The flags for the model and the memory layout, which several commands share, and the model they select: a Hugging Face config, the
// three numbers of a shape, or the default model. Flags replace numbers of a config. Reads at most one file; opens no driver.

import { Option, type Command } from 'commander';

import { createError } from '../base/errors.js';
import { formatCount, formatList, formatNumber } from '../base/format.js';
import { dtypes, layoutKinds, type Dtype, type LayoutKind, type ModelShape } from '../index.js';
import { countFrom, dtypeFlag, pageSizeFlag } from './flag-values.js';
import { readModelConfig } from './model-config.js';
import { shippedPath } from './shipped.js';

/** As commander parses them; an absent flag is undefined. */
export interface ModelFlags {
  readonly config?: string;
  readonly layers?: number;
  readonly kvHeads?: number;
  readonly headDim?: number;
  readonly latentDim?: number;
  readonly dtype?: Dtype;
  readonly tensorParallel?: number;
  readonly pipelineParallel?: number;
}

export interface LayoutFlags {
  readonly layout: LayoutKind | 'auto';
  readonly pageBytes?: number;
  readonly maxTokens?: number;
}

/** A model with the name to show. */
export interface NamedModel {
  readonly name: string;
  readonly model: ModelShape;
  /** The longest sequence that it was made for. */
  readonly maxTokens: number;
}

/** Where the numbers came from. */
export type ModelSource = 'config' | 'flags' | 'default';

/** The model of a command line; `model.parallel` is this worker's share of it. */
export interface SelectedModel extends NamedModel {
  readonly source: ModelSource;
  /** What a config's shape leaves out or overestimates: one sentence each, without a full stop. */
  readonly notes: readonly string[];
}

/** The model of `vkv plan` when no flag names one. */
export const llama3: NamedModel = {
  name: 'Llama-3-8B',
  model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'float16' },
  maxTokens: 8192,
};

/** Adds the flags that describe a model and this worker's share of it. */
export function addModelOptions(command: Command): Command {
  const count = countFrom(1);
  return command
    .option('--config <path>', "the model's Hugging Face config.json, or the folder it is in; or a .gguf file; or storyteller, which comes with the package", shippedPath)
    .option('--layers <count>', 'layers that keep K and V', count)
    .option('--kv-heads <count>', 'KV heads of a layer', count)
    .option('--head-dim <count>', 'elements of a head', count)
    .option('--latent-dim <count>', 'MLA: elements kept per token and layer, in place of heads', count)
    .option('--dtype <name>', `${formatList(dtypes)} (default: the config's, else float16)`, dtypeFlag)
    .option('--tensor-parallel <count>', 'workers that share the KV heads (default: 1)', count)
    .option('--pipeline-parallel <count>', 'workers that share the layers; this is the first (default: 1)', count);
}

/** The flag for a layout, or for the rule that chooses one. */
export function layoutOption(): Option {
  return new Option('--layout <kind>', 'how tensors share address ranges; auto: per-layer where its rows are short and small, else fused')
    .choices([...layoutKinds, 'auto']).default('auto');
}

/** Adds the flags that say how the tensors lie in memory. `defaults` are the texts for two defaults that differ by command. */
export function addLayoutOptions(
  command: Command,
  defaults: { readonly pageBytes: string; readonly maxTokens: string },
): Command {
  return command
    .addOption(layoutOption())
    .option('--page-bytes <size>', `bytes of a physical page (default: ${defaults.pageBytes})`, pageSizeFlag)
    .option('--max-tokens <count>', `tokens a slot has addresses for (default: ${defaults.maxTokens})`, countFrom(1));
}

/**
 * Returns the model that the flags describe, `fallback` when they describe none. `maxTokens` is the flag's, otherwise the config's,
 * otherwise the fallback's. Throws KV_INVALID_OPTION when flags give only a part of the shape, and what `readModelConfig`
 * throws. `tensorsOf` checks later whether the model can be divided as asked.
 */
export function selectModel(
  flags: ModelFlags & Pick<LayoutFlags, 'maxTokens'>, fallback: NamedModel = llama3,
): SelectedModel {
  const { config, layers, kvHeads, headDim, latentDim, dtype } = flags;
  const shape = given({ layers, kvHeads, headDim, latentDim });
  const isDefault = config === undefined && Object.keys(shape).length === 0;
  const base = config !== undefined
    ? { source: 'config' as const, ...readModelConfig(config, { ...shape, ...given({ dtype }) }) }
    : isDefault
      ? { source: 'default' as const, notes: [], ...fallback, model: { ...fallback.model, ...given({ dtype }) } }
      : { source: 'flags' as const, notes: [], name: 'model given by flags', model: modelOfFlags(flags), maxTokens: undefined };
  const parallel = { tensor: flags.tensorParallel, pipeline: flags.pipelineParallel };
  return {
    ...base,
    model: { ...base.model, parallel },
    maxTokens: flags.maxTokens ?? base.maxTokens ?? fallback.maxTokens,
  };
}

function modelOfFlags({ layers, kvHeads, headDim, latentDim, dtype = 'float16' }: ModelFlags): ModelShape {
  if (latentDim === undefined) {
    return {
      layers: required('--layers', layers), kvHeads: required('--kv-heads', kvHeads),
      headDim: required('--head-dim', headDim), dtype,
    };
  }
  rejectWith('--latent-dim', { '--kv-heads': kvHeads, '--head-dim': headDim });
  return { layers: required('--layers', layers), attention: 'latent', latentDim, dtype };
}

/** Describes a model in a line: `32 layers, 8 KV heads × 128, float16, tensor-parallel 2`. */
export function describeModel(model: ModelShape): string {
  const { layers, kvHeads, headDim, latentDim, attention, indexDim, dtype, layerShapes, layerSets, parallel } = model;
  const heads = kvHeads === undefined && layerShapes !== undefined
    ? 'KV heads that differ by layer'
    : formatCount('KV head', kvHeads ?? 0);
  const perToken = attention === 'latent'
    ? `latent of ${formatNumber(latentDim ?? 0)}${indexDim === undefined ? '' : `, index of ${formatNumber(indexDim)}`}`
    : `${heads} × ${formatNumber(headDim ?? 0)}`;
  const share = [
    (parallel?.tensor ?? 1) > 1 ? `, tensor-parallel ${parallel!.tensor}` : '',
    (parallel?.pipeline ?? 1) > 1 ? `, pipeline-parallel ${parallel!.pipeline}` : '',
  ];
  const sets = layerSets === undefined ? '' : ` (${formatList(layerSets.map((set) => `${set.layers.length} ${set.kind}`), 'and')})`;
  return `${formatCount('layer', layers)}${sets}, ${perToken}, ${dtype}${share.join('')}`;
}

function required(flag: string, value: number | undefined): number {
  if (value !== undefined) return value;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'vkv', option: flag, received: undefined,
    expected: 'given with the other numbers of the shape',
    hint: 'Give `--layers`, `--kv-heads` and `--head-dim` (or `--latent-dim`), or a `--config`, or none of them.',
  });
}

function rejectWith(flag: string, others: Readonly<Record<string, number | undefined>>): void {
  for (const [option, received] of Object.entries(others)) {
    if (received === undefined) continue;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'vkv', option, expected: `left out with \`${flag}\``, received,
    });
  }
}

/** Drops undefined members: spread, they would replace values. */
function given<T extends object>(values: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const entries = Object.entries(values).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [K in keyof T]?: Exclude<T[K], undefined> };
}
