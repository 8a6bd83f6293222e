// CausalMask: whether what a graph adds to attention's scores is only the mask of a causal text without padding, which the
// cache's attention applies by itself, or that with a window. It is computed, for a few texts, by onnxruntime: masks come in
// too many forms to be told by their nodes.

import { float16Values } from './float16-values.js';
import { elements, makeValue, neededFor, writeGraph, type OnnxValue } from './graph.js';
import type { DecoderPlan } from './decoder-graph.js';
import { modelError } from '../llama/model-error.js';
import { nodeText } from './attention-nodes.js';
import { OnnxSession, type OnnxArray, type OnnxInput } from './session.js';

/** Texts: tokens of the past, and new ones. The last is to show a window. */
const texts = [{ past: 0, tokens: 12 }, { past: 9, tokens: 5 }, { past: 8_191, tokens: 1 }] as const;

/** What hides a token adds at least this little, and what does not hide it adds nothing. */
const hides = -1e4;

/** The window of each mask of a decoder, 0: none. Rejects with KV_MODEL_INVALID for one that is more than a mask. */
export async function maskWindows(plan: DecoderPlan, session: { readonly library: string; readonly folder: string }): Promise<Map<string, number>> {
  const windows = new Map<string, number>();
  for (const { mask, node } of plan.layers) {
    if (mask !== '' && !windows.has(mask)) windows.set(mask, await windowOf(plan, mask, nodeText(node), session));
  }
  return windows;
}

async function windowOf({ graph, source, layers }: DecoderPlan, mask: string, reader: string, options: { readonly library: string; readonly folder: string }): Promise<number> {
  const refuse = (problem: string): Error => modelError(`${source}: the node ${reader} adds ${JSON.stringify(mask)} to its scores, which ${problem}. Export the model without it.`);
  const { nodes, values } = neededFor([mask], graph);
  if (values.has('input_ids') && nodes.some(({ inputs, operator }) => inputs.includes('input_ids') && operator !== 'Shape')) throw refuse('depends on the text');
  const own = nodes.filter((node) => layers.every((layer) => layer.node !== node));
  if (own.length < nodes.length) throw refuse('depends on other attention');
  const inputs = graph.inputs.filter(({ name }) => values.has(name));
  const type = layers[0]!.type;
  const model = writeGraph(graph, { nodes, inputs, outputs: [makeValue(mask, type, undefined)] });
  const session = await OnnxSession.open({ ...options, threads: 1, model });
  try {
    let window = 0;
    for (const text of texts) {
      const [result] = await session.run({ inputs: inputs.map((input) => inputOf(input, text, refuse)), outputs: [{ name: mask, type, dims: [] }] });
      const { dims, bytes } = result!;
      const added = type === elements.float16 ? float16Values(new Uint16Array(bytes)) : new Float32Array(bytes);
      const all = text.past + text.tokens;
      if (dims.length !== 4 || dims[2] !== text.tokens || dims[3] !== all) throw refuse(`is not of the shape [batch, heads, ${text.tokens}, ${all}]`);
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
    session.close();
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

/** An input for a text of ones: its ids, its mask without padding, its positions, an empty past of so many tokens. */
function inputOf({ name, type, dims = [] }: OnnxValue, { past, tokens }: { readonly past: number; readonly tokens: number }, refuse: (problem: string) => Error): OnnxInput {
  const filled = (lengths: readonly number[], value: (at: number) => number): OnnxInput => {
    const count = lengths.reduce((product, length) => product * length, 1);
    let data: OnnxArray;
    if (type === elements.int64) data = BigInt64Array.from({ length: count }, (_, at) => BigInt(value(at)));
    else if (type === elements.int32) data = Int32Array.from({ length: count }, (_, at) => value(at));
    else if (type === elements.float32) data = new Float32Array(count);
    else if (type === elements.float16) data = new Uint16Array(count);
    else throw refuse(`depends on the input ${JSON.stringify(name)} of type ${type}`);
    return { name, type, dims: lengths, data };
  };
  if (name === 'attention_mask') return filled([1, past + tokens], () => 1);
  if (name === 'position_ids') return filled([1, tokens], (at) => past + at);
  if (name === 'input_ids') return filled([1, tokens], () => 1);
  if (dims.length === 4 && typeof dims[1] === 'number' && typeof dims[3] === 'number') return filled([1, dims[1], past, dims[3]], () => 0);
  throw refuse(`depends on the input ${JSON.stringify(name)}`);
}
