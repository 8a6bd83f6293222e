// Shapes of random models whose rows are short, so that small texts have several rows and end inside them; and texts for them.

import { computeLayout, type Layout, type LayoutKind } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { LlamaSizes } from './made-llama.js';

export const pageBytes = 65_536;
export const vocabularyTokens = 50;

/** The layout of a cache of one slot for models of this shape, with K and V in float32. */
export function layoutOf(layout: LayoutKind, { layers, kvHeads, headDim }: Pick<LlamaSizes, 'layers' | 'kvHeads' | 'headDim'>, maxTokens = 1): Layout {
  return computeLayout({ model: { layers, kvHeads, headDim, dtype: 'float32' }, layout, slots: 1, maxTokens, pageBytes });
}

/** A shape of which a row of 64 KiB pages holds about `rowTokens` tokens, whatever the layout. */
export function shapeOf(layout: LayoutKind, layers: number, kvHeads: number, group: number, rowTokens = 32): LlamaSizes {
  const { commonTokenBytes } = layoutOf(layout, { layers, kvHeads, headDim: 1 });
  const headDim = 2 * Math.round(pageBytes / rowTokens / commonTokenBytes / 2 + 0.6); // odd strides too
  return { layers, hidden: 24, intermediate: 40, queryHeads: kvHeads * group, kvHeads, headDim, vocabularyTokens };
}

export function randomText(random: Random, length: number): number[] {
  return Array.from({ length }, () => random.integer(vocabularyTokens));
}
