// Shapes of random models whose rows are short, so that small texts have several rows and end inside them; and texts for them.

import type { LayoutKind } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { LlamaSizes } from './made-llama.js';

export const pageBytes = 65_536;
export const vocabularyTokens = 50;

/** A shape of which a row of 64 KiB pages holds about `rowTokens` tokens, whatever the layout. */
export function shapeOf(layout: LayoutKind, layers: number, kvHeads: number, group: number, rowTokens = 32): LlamaSizes {
  const tensorsInOne = { 'per-layer': 1, 'sliced': layers, 'fused': 2 * layers }[layout];
  const elements = pageBytes / 4 / rowTokens;
  const headDim = 2 * Math.round(elements / tensorsInOne / kvHeads / 2 + 0.6); // odd strides too
  return { layers, hidden: 24, intermediate: 40, queryHeads: kvHeads * group, kvHeads, headDim, vocabularyTokens };
}

/** Pages of a row of all tensors. */
export function rowPagesOf(layout: LayoutKind, { layers }: LlamaSizes): number {
  return { 'per-layer': 2 * layers, 'sliced': 2, 'fused': 1 }[layout];
}

export function randomText(random: Random, length: number): number[] {
  return Array.from({ length }, () => random.integer(vocabularyTokens));
}
