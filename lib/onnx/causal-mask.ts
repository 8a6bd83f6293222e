// CausalMask: whether what a graph adds to attention's scores is only the mask of a causal text without padding, which the
// cache's attention applies by itself, or that with a window. It is computed, for a few texts, by onnxruntime.

import type { DecoderPlan } from './decoder-graph.js';
import { modelError } from '../llama/model-error.js';
import { nodeText } from './attention-nodes.js';
import { GraphPart, type PartPlace, type Refuse } from './graph-part.js';

/** Texts: tokens of the past, and new ones. The last is to show a window. */
const texts = [{ past: 0, tokens: 12 }, { past: 9, tokens: 5 }, { past: 8_191, tokens: 1 }] as const;

/** What hides a token adds at least this little, and what does not hide it adds nothing. */
export const hides = -1e4;

/** The window of each mask of a decoder, 0: none. Rejects with KV_MODEL_INVALID for one that is more than a mask. */
export async function maskWindows(plan: DecoderPlan, place: PartPlace): Promise<Map<string, number>> {
  const windows = new Map<string, number>();
  for (const { mask, node } of plan.layers) {
    if (mask !== '' && !windows.has(mask)) windows.set(mask, await windowOf(plan, mask, nodeText(node), place));
  }
  return windows;
}

async function windowOf(plan: DecoderPlan, mask: string, reader: string, place: PartPlace): Promise<number> {
  const refuse: Refuse = (problem, options) =>
    modelError(`${plan.source}: the node ${reader} adds ${JSON.stringify(mask)} to its scores, which ${problem}. Export the model without it.`, options);
  const part = await GraphPart.open({ plan, place, results: [mask], refuse });
  try {
    let window = 0;
    for (const text of texts) {
      const [{ dims, values, isBoolean }] = await part.run(text) as [Awaited<ReturnType<GraphPart['run']>>[0]];
      const added = isBoolean ? values.map((isSeen) => (isSeen === 1 ? 0 : hides)) : values;
      const all = text.past + text.tokens;
      if (dims.length < 2 || dims.at(-2) !== text.tokens || dims.at(-1) !== all) throw refuse(`is not of the shape [batch, heads, ${text.tokens}, ${all}]`);
      for (let row = 0; row < added.length / all; row += 1) {
        const seen = seenBy(added.subarray(row * all, (row + 1) * all), text.past + row % text.tokens);
        if (seen === undefined) throw refuse('is more than the mask of a causal text');
        const end = text.past + row % text.tokens + 1;
        if (seen === end && (window === 0 || seen <= window)) continue;
        if (window === 0) window = seen;
        if (seen !== Math.min(window, end)) throw refuse('hides tokens as no window does');
      }
    }
    return window;
  } finally {
    part.close();
  }
}

/** How many tokens the one at `position` sees, itself the last; undefined unless they follow each other and add nothing. */
function seenBy(added: Float32Array, position: number): number | undefined {
  let first = position;
  while (first > 0 && added[first - 1] === 0) first -= 1;
  for (let token = 0; token < added.length; token += 1) {
    const isSeen = token >= first && token <= position;
    if (isSeen ? added[token] !== 0 : !(added[token]! <= hides)) return undefined;
  }
  return position - first + 1;
}
