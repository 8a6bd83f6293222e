// UnfusedAttention: what attention in several nodes computes, seen by computing it: random Q, K and V of a few tokens with a causal mask
// go through the exporter's nodes in onnxruntime. Its scale and softcap show in the scores, and both scores and output must be those
// of attention, or the node is refused.

import { Random } from '../base/random.js';
import { refusalOf, type AttentionNode } from './attention-nodes.js';
import { hides } from './causal-mask.js';
import type { DecoderPlan } from './decoder-graph.js';
import { float16Bits, float16Values } from './float16-values.js';
import { elements, makeValue } from './graph.js';
import { GraphPart, type PartPlace } from './graph-part.js';
import type { OnnxInput } from './session.js';

const text = { past: 3, tokens: 4 } as const;
const all = text.past + text.tokens;

/** The layers of a decoder, with the scale and the softcap of those in several nodes. Rejects with KV_MODEL_INVALID, which names the node. */
export async function measureUnfused(plan: DecoderPlan, place: PartPlace): Promise<readonly AttentionNode[]> {
  const layers: AttentionNode[] = [];
  for (const layer of plan.layers) layers.push(layer.unfused === undefined ? layer : await measure(layer, layer.unfused, plan, place));
  return layers;
}

async function measure(layer: AttentionNode, { scores }: { readonly scores: string }, plan: DecoderPlan, place: PartPlace): Promise<AttentionNode> {
  const refuse = refusalOf(layer.node, plan.source);
  if (layer.heads % layer.kvHeads !== 0) throw refuse(`ends attention of ${layer.heads} heads of queries over ${layer.kvHeads} of K and V`);
  const part = await GraphPart.open({
    plan, place, refuse: (problem, options) => refuse(`ends attention that ${problem}`, options),
    results: scores === '' ? [layer.output] : [layer.output, scores],
    given: [layer.queries, layer.keys, layer.values, layer.mask].filter((name) => name !== '').map((name) => makeValue(name, layer.type, undefined)),
  });
  try {
    const run = async (size: number): Promise<Measured> => {
      const trial = new Trial(layer, size);
      const [output, seen] = await part.run(text, trial.inputs);
      return { trial, output: output!.values, scores: seen?.values };
    };
    const measured = scores === '' ? layer : { ...layer, ...factorsOf(await run(layer.type === elements.float16 ? 0.05 : 0.002), await run(200), layer) };
    const { trial, output, scores: got } = await run(1);
    const wanted = trial.attention(measured);
    const most = layer.type === elements.float16 ? 2e-2 : 1e-3;
    if (got !== undefined && !areNear(got, wanted.scores, most)) throw refuse('ends attention whose scores are no scaled products of Q and K');
    if (!areNear(output, wanted.output, most)) throw refuse('ends attention that gives something else than the mean of values, weighted by scores');
    return measured;
  } finally {
    part.close();
  }
}

interface Measured {
  readonly trial: Trial;
  readonly output: Float32Array;
  readonly scores: Float32Array | undefined;
}

/** Scale and softcap, by scores of small queries, where a cap does nothing, and of large ones, where it does all. */
function factorsOf(small: Measured, large: Measured, { dim, type }: AttentionNode): { readonly scale: number; readonly softcap: number } {
  const products = small.trial.products();
  let [square, both] = [0, 0];
  small.scores!.forEach((score, at) => {
    square += products[at]! ** 2;
    both += products[at]! * score;
  });
  const scale = both / square;
  const isUsual = Math.abs(scale * Math.sqrt(dim) - 1) < (type === elements.float16 ? 1e-3 : 1e-5);
  const most = large.scores!.reduce((max, score) => Math.max(max, Math.abs(score)), 0);
  const free = large.trial.products().reduce((max, product) => Math.max(max, Math.abs(product * scale)), 0);
  return { scale: isUsual ? 0 : scale, softcap: most < 0.9 * free ? most : 0 };
}

const areNear = (got: Float32Array, wanted: Float32Array, most: number): boolean =>
  got.length === wanted.length && got.every((value, at) => Math.abs(value - wanted[at]!) <= most * (1 + Math.abs(wanted[at]!)));

/** Random Q, K and V of one layer, and attention over them in plain loops. Arrays are [head, token, dim], past first. */
class Trial {
  readonly inputs: ReadonlyMap<string, OnnxInput>;
  readonly #layer: AttentionNode;
  readonly #queries: Float32Array;
  readonly #keys: Float32Array;
  readonly #values: Float32Array;

  /** `size`: of the elements of queries. */
  constructor(layer: AttentionNode, size: number) {
    const { heads, kvHeads, dim, valueDim, queries, keys, values, mask, past, type } = layer;
    const random = new Random(1);
    const inputs = new Map<string, OnnxInput>();
    const give = (name: string, dims: readonly number[], from: Float32Array): Float32Array => {
      const data = type === elements.float16 ? Uint16Array.from(from, float16Bits) : from;
      inputs.set(name, { name, type, dims, data });
      return data instanceof Uint16Array ? float16Values(data) : data;
    };
    const some = (name: string, count: number, tokens: number, width: number, most: number): Float32Array =>
      give(name, [1, count, tokens, width], Float32Array.from({ length: count * tokens * width }, () => (2 * random.next() - 1) * most));
    const withPast = (before: string, added: string, width: number): Float32Array => {
      const parts = [some(before, kvHeads, text.past, width, 1), some(added, kvHeads, text.tokens, width, 1)] as const;
      const joined = new Float32Array(kvHeads * all * width);
      for (let head = 0; head < kvHeads; head += 1) {
        joined.set(parts[0].subarray(head * text.past * width, (head + 1) * text.past * width), head * all * width);
        joined.set(parts[1].subarray(head * text.tokens * width, (head + 1) * text.tokens * width), (head * all + text.past) * width);
      }
      return joined;
    };
    this.#layer = layer;
    this.#queries = some(queries, heads, text.tokens, dim, size);
    this.#keys = withPast(past[0]!, keys, dim);
    this.#values = withPast(past[1]!, values, valueDim);
    if (mask !== '') {
      give(mask, [1, 1, text.tokens, all], Float32Array.from({ length: text.tokens * all }, (_, at) => (at % all > text.past + Math.floor(at / all) ? hides : 0)));
    }
    this.inputs = inputs;
  }

  /** [head, token, token seen]: of Q and K. */
  products(): Float32Array {
    const { heads, kvHeads, dim } = this.#layer;
    return Float32Array.from({ length: heads * text.tokens * all }, (_, at) => {
      const query = Math.floor(at / all) * dim;
      const key = (Math.floor(at / all / text.tokens * kvHeads / heads) * all + at % all) * dim;
      let product = 0;
      for (let element = 0; element < dim; element += 1) product += this.#queries[query + element]! * this.#keys[key + element]!;
      return product;
    });
  }

  attention({ scale, softcap }: AttentionNode): { readonly scores: Float32Array; readonly output: Float32Array } {
    const { heads, kvHeads, dim, valueDim } = this.#layer;
    const scores = this.products().map((product) => {
      const scaled = product * (scale || 1 / Math.sqrt(dim));
      return softcap === 0 ? scaled : softcap * Math.tanh(scaled / softcap);
    });
    const output = new Float32Array(heads * text.tokens * valueDim);
    for (let row = 0; row < heads * text.tokens; row += 1) {
      const seen = scores.subarray(row * all, row * all + text.past + row % text.tokens + 1);
      const weights = seen.map((score) => Math.exp(score - Math.max(...seen)));
      const sum = weights.reduce((total, weight) => total + weight, 0);
      const first = Math.floor(row / text.tokens * kvHeads / heads) * all;
      weights.forEach((weight, token) => {
        for (let element = 0; element < valueDim; element += 1) {
          output[row * valueDim + element]! += weight / sum * this.#values[(first + token) * valueDim + element]!;
        }
      });
    }
    return { scores, output };
  }
}
