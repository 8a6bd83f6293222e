// GraphPart: some values of a decoder's graph, computed by themselves in onnxruntime, for short texts of ones. What exporters write in
// too many forms to be told by their nodes, masks and unfused attention, is seen by what it computes.

import { isKvError } from '../base/errors.js';
import type { DecoderPlan } from './decoder-graph.js';
import { float16Values } from './float16-values.js';
import { elements, makersOf, neededFor, renamed, writeGraph, type OnnxGraph, type OnnxNode, type OnnxValue } from './graph.js';
import { textField } from './protobuf.js';
import { OnnxSession, type OnnxArray, type OnnxInput } from './session.js';

/** Where parts are computed. */
export interface PartPlace {
  readonly library: string;
  readonly folder: string;
}

/** A text: tokens of the past, and new ones. */
export interface PartText {
  readonly past: number;
  readonly tokens: number;
}

export interface PartResult {
  readonly dims: readonly number[];
  readonly values: Float32Array;
  readonly isBoolean: boolean;
}

export interface PartOptions {
  readonly plan: DecoderPlan;
  readonly place: PartPlace;
  /** Values to compute. */
  readonly results: readonly string[];
  /** Values that are given, with their types, in the place of what computes them. */
  readonly given?: readonly OnnxValue[];
  readonly refuse: Refuse;
}

/** Makes an error, which names the attention node that needs the part. */
export type Refuse = (problem: string, options?: { readonly cause?: unknown }) => Error;

export class GraphPart {
  readonly #session: OnnxSession;
  readonly #inputs: readonly OnnxValue[];
  readonly #results: readonly string[];
  readonly #refuse: Refuse;

  private constructor(session: OnnxSession, inputs: readonly OnnxValue[], { results, refuse }: PartOptions) {
    this.#session = session;
    this.#inputs = inputs;
    this.#results = results;
    this.#refuse = refuse;
  }

  /** Rejects with what `refuse` makes for values that depend on the text's tokens or on other attention, or that cannot be computed. */
  static async open(options: PartOptions): Promise<GraphPart> {
    const { plan: { graph, layers }, place, results, given = [], refuse } = options;
    const without = new Set(given.map(({ name }) => name));
    const { nodes, values } = neededFor(results, { nodes: ofShapes(graph).filter(({ outputs }) => !outputs.some((name) => without.has(name))) });
    if (nodes.some(({ inputs, operator }) => operator !== 'Shape' && inputs.includes('input_ids'))) throw refuse('depends on the text');
    if (nodes.some((node) => layers.some((layer) => layer.node === node && !results.includes(layer.output)))) throw refuse('depends on other attention');
    const inputs = [...graph.inputs.filter(({ name }) => values.has(name)), ...given.filter(({ name }) => values.has(name))];
    const model = writeGraph(graph, { nodes, inputs, outputs: results.map(untyped) });
    const session = await OnnxSession.open({ ...place, threads: 1, model }).catch((cause: unknown) => { throw refusedBy(cause, refuse); });
    return new GraphPart(session, inputs, options);
  }

  /** Computes the results for a text; `data` is that of the values given. */
  async run(text: PartText, data: ReadonlyMap<string, OnnxInput> = new Map()): Promise<readonly PartResult[]> {
    const inputs = this.#inputs.map((input) => data.get(input.name) ?? inputOf(input, text, this.#refuse));
    const outputs = this.#results.map((name) => ({ name, type: elements.float32, dims: [] }));
    const results = await this.#session.run({ inputs, outputs }).catch((cause: unknown) => { throw refusedBy(cause, this.#refuse); });
    return results.map(({ type, dims, bytes }) => ({ dims, values: this.#floatsOf(type, bytes), isBoolean: type === elements.bool }));
  }

  close(): void {
    this.#session.close();
  }

  #floatsOf(type: number, bytes: ArrayBuffer): Float32Array {
    if (type === elements.float32) return new Float32Array(bytes);
    if (type === elements.float16) return float16Values(new Uint16Array(bytes));
    if (type === elements.bool) return Float32Array.from(new Uint8Array(bytes));
    throw this.#refuse(`is of type ${type} of ONNX`);
  }
}

/** A value whose type onnxruntime finds out. */
const untyped = (name: string): OnnxValue => ({ name, type: 0, dims: undefined, raw: textField(1, name) });

/** The error for a part of the graph that onnxruntime refuses to compute. */
function refusedBy(cause: unknown, refuse: Refuse): unknown {
  return isKvError(cause, 'KV_ONNX_FAILED') ? refuse(`cannot be computed by itself (${cause.message.split('\n', 1)[0]!})`, { cause }) : cause;
}

/** An input for a text of ones: its ids, its mask without padding, its positions, an empty past of so many tokens. */
function inputOf({ name, type, dims = [] }: OnnxValue, { past, tokens }: PartText, refuse: Refuse): OnnxInput {
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

/** The nodes of a graph, where those that take the shape of embeddings take that of `input_ids`: both begin with [batch, tokens]. */
function ofShapes(graph: OnnxGraph): readonly OnnxNode[] {
  const makers = makersOf(graph);
  const isEmbedding = (name: string, steps = 4): boolean => {
    const maker = makers.get(name);
    if (maker?.operator === 'Gather' || maker?.operator === 'GatherBlockQuantized') return maker.inputs[1] === 'input_ids';
    return steps > 0 && (maker?.operator === 'Mul' || maker?.operator === 'Cast') && isEmbedding(maker.inputs[0]!, steps - 1);
  };
  return graph.nodes.map((node) => {
    const [input] = node.inputs;
    return node.operator === 'Shape' && isEmbedding(input ?? '') ? renamed(node, new Map([[input!, 'input_ids']])) : node;
  });
}
