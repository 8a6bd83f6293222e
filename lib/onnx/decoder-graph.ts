// DecoderGraph: the graph of a decoder, rewritten for memory that is a cache's. Attention with a past becomes the cache's own,
// pasts and presents are gone, and so is what only they needed: masks, lengths. All new tokens of a pass are the one row of [1, tokens],
// and only the rows whose logits are wanted reach the head. Pure: bytes in, bytes out.

import { formatList } from '../base/format.js';
import { modelError } from '../llama/model-error.js';
import { attentionNodes, nodeText, refusalOf, type AttentionNode } from './attention-nodes.js';
import {
  elements, makeNode, makeValue, neededFor, ownDomain, readGraph, renamed, writeGraph, type NewNode, type OnnxGraph, type OnnxNode, type OnnxValue,
} from './graph.js';

/**
 * How an input of the rewritten graph is filled: [1, tokens] each, where `places` are positions in the sequences, whatever
 * `position_ids` count from; the rows whose logits are wanted; a number 0.
 */
export interface DecoderInput {
  readonly name: string;
  readonly kind: 'tokens' | 'positions' | 'places' | 'rows' | 'zero';
  readonly type: number;
  /** Of `zero`. */
  readonly rank: number;
}

export interface DecoderGraph {
  readonly bytes: Uint8Array;
  readonly inputs: readonly DecoderInput[];
  /** Layers that keep K and V, without their nodes, which keep the file's bytes. */
  readonly layers: readonly Omit<AttentionNode, 'node'>[];
  readonly dtype: 'float32' | 'float16';
  readonly vocabularyTokens: number;
  /** Positions that its tables have; undefined: no table says. */
  readonly maxTokens: number | undefined;
}

/** A decoder's graph as it was read, before its masks are known. */
export interface DecoderPlan {
  readonly graph: OnnxGraph;
  readonly source: string;
  readonly layers: readonly AttentionNode[];
}

/** How a decoder is written. */
export interface DecoderWriting {
  /** Whether it is for onnxruntime's CUDA provider. Default: for the CPU. */
  readonly isOnDevice?: boolean;
}

const [rows, places] = ['virtualkv_rows', 'virtualkv_places'];

/** Reads a decoder. Throws KV_MODEL_INVALID, which names what cannot be computed. */
export function planDecoder(bytes: Uint8Array, source: string): DecoderPlan {
  const graph = readGraph(bytes, source);
  const layers = attentionNodes(graph, source);
  if (layers.length === 0) {
    throw modelError(`${source} has no attention with a past that is known: GroupQueryAttention, MultiHeadAttention, Attention, or ` +
      'a Softmax of products with a past. Export it with one, by onnxruntime-genai\'s model builder for example.');
  }
  const types = new Set(layers.map(({ type }) => type));
  const [type] = types;
  if (types.size > 1 || (type !== elements.float32 && type !== elements.float16)) {
    throw modelError(`${source} keeps K and V in types ${formatList([...types].map(String), 'and')} of ONNX. Export it with one of float32 or float16.`);
  }
  return { graph, source, layers };
}

/** Writes the decoder. `windows`: by mask, how many tokens it lets one see; 0: all. Throws KV_MODEL_INVALID. */
export function writeDecoder(
  { graph, source, layers }: DecoderPlan, windows: ReadonlyMap<string, number>, { isOnDevice = false }: DecoderWriting = {},
): DecoderGraph {
  const logits = graph.outputs.find(({ name }) => name === 'logits');
  if (logits?.dims?.length !== 3) throw modelError(`${source} has no output "logits" of three dimensions. Export it as a decoder with a past.`);
  const attention = new Map(layers.map((layer, index) =>
    [layer.node, attentionNodesOf(layer, index, { maskWindow: windows.get(layer.mask) ?? 0, graph, source, isOnDevice })]));
  let nodes = graph.nodes.flatMap((node) => attention.get(node) ?? [node]);
  const head = headOf(graph);
  nodes = head === undefined ? gatherAfter(nodes) : gatherBefore(nodes, head);
  if (logits.type !== elements.float32) nodes = castLogits(nodes);
  const needed = neededFor(['logits'], { nodes });
  const inputs = graph.inputs.filter(({ name }) => needed.values.has(name)).map((input) => decoderInput(input, needed.nodes, source, layers));
  if (!inputs.some(({ kind }) => kind === 'tokens')) throw modelError(`${source} has no input "input_ids". Export it with its embeddings.`);
  const all: DecoderInput[] = [
    ...inputs, ...needed.values.has(places) ? [{ name: places, kind: 'places', type: elements.int64, rank: 2 } as const] : [],
    { name: rows, kind: 'rows', type: elements.int64, rank: 1 },
  ];
  const vocabularyTokens = vocabularyOf(logits, head, graph);
  if (vocabularyTokens === undefined) throw modelError(`${source} does not say how many tokens its vocabulary has. Export it with the shape of "logits".`);
  return {
    bytes: writeGraph(graph, {
      nodes: needed.nodes, inputs: all.map(({ name, kind, type, rank }) => makeValue(name, type, dimsOf(kind, rank))),
      outputs: [makeValue('logits', elements.float32, [1, 'rows', vocabularyTokens])],
    }),
    inputs: all, layers: layers.map(({ node: _node, ...layer }) => ({ ...layer, window: narrowest(layer.window, windows.get(layer.mask) ?? 0) })),
    dtype: layers[0]!.type === elements.float32 ? 'float32' : 'float16', vocabularyTokens, maxTokens: tableRows(needed.nodes, layers, graph),
  };
}

/** The smaller of two windows, where 0 is none. */
const narrowest = (a: number, b: number): number => (a === 0 || b === 0 ? Math.max(a, b) : Math.min(a, b));

interface AttentionWriting {
  readonly maskWindow: number;
  readonly graph: OnnxGraph;
  readonly source: string;
  readonly isOnDevice: boolean;
}

/**
 * The cache's attention in a layer's place, and what it needs beside. Its rows are tokens: what has heads first is turned. Sinks are
 * float32. On a device, nodes of onnxruntime split what is packed and turn by positions.
 */
function attentionNodesOf(layer: AttentionNode, index: number, { maskWindow, graph, source, isOnDevice }: AttentionWriting): OnnxNode[] {
  const { node, heads, kvHeads, dim, valueDim, cosines, sines, areNeighbours } = layer;
  const nodes: OnnxNode[] = [];
  const own = (what: string): string => `virtualkv_${what}_${index}`;
  const add = (what: string, operator: string, inputs: readonly string[], more: Partial<NewNode> = {}): string => {
    nodes.push(makeNode({ name: own(what), operator, inputs, outputs: [own(what)], ...more }));
    return own(what);
  };
  let { queries, keys, values, sinks } = layer;
  if (layer.hasHeadsFirst) {
    [queries, keys, values] = ([['queries', queries], ['keys', keys], ['values', values]] as const)
      .map(([what, from]) => add(what, 'Transpose', [from], headsBehindRows)) as [string, string, string];
  }
  if (isOnDevice && keys === '') {
    const outputs = ['queries', 'keys', 'values'].map(own) as [string, string, string];
    const sizes = add('sizes', 'Constant', [], { integers: { value_ints: [heads * dim, kvHeads * dim, kvHeads * valueDim] } });
    add('split', 'Split', [queries, sizes], { outputs, integers: { axis: 2 } });
    [queries, keys, values] = outputs;
  }
  if (isOnDevice && cosines !== '') {
    const half = tableDims(cosines, graph)?.[1];
    if (half === undefined) throw refusalOf(node, source)('turns by cosines that are computed, which are a tensor of the file where a device computes');
    const turned = (what: string, from: string, count: number): string => add(what, 'RotaryEmbedding', [from, places, cosines, sines], {
      domain: 'com.microsoft', integers: { interleaved: areNeighbours ? 1 : 0, num_heads: count, rotary_embedding_dim: 2 * half },
    });
    [queries, keys] = [turned('turned_queries', queries, heads), turned('turned_keys', keys, kvHeads)];
  }
  if (sinks !== '' && layer.type !== elements.float32) sinks = add('sinks', 'Cast', [sinks], { integers: { to: elements.float32 } });
  if (sinks === '' && layer.hasSmoothSoftmax) sinks = add('sinks', 'Constant', [], { floats: { value_floats: new Array<number>(heads).fill(0) } });
  const turns = !isOnDevice && cosines !== '';
  const output = layer.hasHeadsFirst ? own('output') : layer.output;
  const inputs = [queries, keys, values, turns ? cosines : '', turns ? sines : '', sinks];
  while (inputs.at(-1) === '') inputs.pop();
  nodes.push(makeNode({
    name: node.name || own('attention'), operator: layer.type === elements.float16 ? 'AttentionFloat16' : 'Attention', domain: ownDomain,
    inputs, outputs: [output],
    integers: {
      layer: index, num_heads: heads, kv_num_heads: kvHeads, packed: keys === '' ? 1 : 0, rotary: turns ? 1 + Number(areNeighbours) : 0,
      window: narrowest(layer.window, maskWindow),
    },
    floats: { scale: layer.scale, softcap: layer.softcap },
  }));
  if (layer.hasHeadsFirst) add('result', 'Transpose', [output], { ...headsBehindRows, outputs: [layer.output] });
  return nodes;
}

const headsBehindRows = { integers: { perm: [0, 2, 1, 3] } } as const;

/** What is computed of each logit by itself. */
const elementwise = new Set(['Cast', 'Div', 'Mul', 'Tanh', 'Add', 'Identity']);
const products = new Set(['MatMul', 'MatMulNBits']);

/** The product that the logits come from, whose rows are tokens. */
function headOf(graph: OnnxGraph): OnnxNode | undefined {
  const isConstant = (name: string): boolean => graph.tensors.has(name) || graph.nodes.some((node) => node.operator === 'Constant' && node.outputs.includes(name));
  let wanted = 'logits';
  for (let step = 0; step < 8; step += 1) {
    const maker = graph.nodes.find(({ outputs }) => outputs.includes(wanted));
    if (maker === undefined) return undefined;
    if (products.has(maker.operator)) return graph.tensors.has(maker.inputs[1] ?? '') ? maker : undefined;
    const [input, ...others] = maker.inputs.filter((name) => !isConstant(name));
    if (!elementwise.has(maker.operator) || input === undefined || others.length > 0) return undefined;
    wanted = input;
  }
  return undefined;
}

const gather = (from: string, to: string): OnnxNode =>
  makeNode({ name: 'virtualkv_gather', operator: 'Gather', inputs: [from, rows], outputs: [to], integers: { axis: 1 } });

function gatherBefore(nodes: readonly OnnxNode[], head: OnnxNode): OnnxNode[] {
  const [hidden] = head.inputs;
  const wanted = 'virtualkv_hidden';
  return nodes.flatMap((node) => (node === head ? [gather(hidden!, wanted), renamed(node, new Map([[hidden!, wanted]]))] : [node]));
}

const gatherAfter = (nodes: readonly OnnxNode[]): OnnxNode[] => afterLogits(nodes, 'virtualkv_all_logits', (name) => gather(name, 'logits'));

const castLogits = (nodes: readonly OnnxNode[]): OnnxNode[] => afterLogits(nodes, 'virtualkv_half_logits', (name) =>
  makeNode({ name: 'virtualkv_cast', operator: 'Cast', inputs: [name], outputs: ['logits'], integers: { to: elements.float32 } }));

/** Puts a node between what makes the logits and the output. */
function afterLogits(nodes: readonly OnnxNode[], name: string, make: (from: string) => OnnxNode): OnnxNode[] {
  return nodes.flatMap((node) => (node.outputs.includes('logits') ? [renamed(node, new Map([['logits', name]])), make(name)] : [node]));
}

function vocabularyOf({ dims }: OnnxValue, head: OnnxNode | undefined, { tensors }: OnnxGraph): number | undefined {
  const [, , said] = dims!;
  if (typeof said === 'number' && said > 0) return said;
  if (head === undefined) return undefined;
  return head.operator === 'MatMul' ? tensors.get(head.inputs[1]!)!.dims.at(-1) : head.attributes.get('N')?.integer;
}

const zeros = ['num_logits_to_keep', 'logits_to_keep'];

/** How an input that is left is filled. Throws KV_MODEL_INVALID for one that cannot be. */
function decoderInput({ name, type, dims = [] }: OnnxValue, nodes: readonly OnnxNode[], source: string, layers: readonly AttentionNode[]): DecoderInput {
  const isInteger = type === elements.int64 || type === elements.int32;
  if (name === 'input_ids' && isInteger && dims.length === 2) return { name, kind: 'tokens', type, rank: 2 };
  if (name === 'position_ids' && isInteger && dims.length === 2) return { name, kind: 'positions', type, rank: 2 };
  if (zeros.includes(name) && isInteger && dims.length < 2) return { name, kind: 'zero', type, rank: dims.length };
  const reader = nodes.find(({ inputs, captured }) => inputs.includes(name) || captured.includes(name))!;
  const isPast = layers.some(({ past }) => past.includes(name));
  throw modelError(`${source}: the node ${nodeText(reader)} reads the input ${JSON.stringify(name)}${isPast ? ', a past, outside of attention' : ''}, ` +
    `which a pass of many sequences has not. Export the model with ${name === 'attention_mask' ? '`position_ids`' : 'input_ids and position_ids'} as ` +
    'inputs, and nothing else computed from others.');
}

function dimsOf(kind: DecoderInput['kind'], rank: number): (number | string)[] {
  if (kind === 'rows') return ['rows'];
  return kind === 'zero' ? new Array<number>(rank).fill(1) : [1, 'tokens'];
}

/** The rows of the shortest table of cosines. */
function tableRows(nodes: readonly OnnxNode[], layers: readonly AttentionNode[], graph: OnnxGraph): number | undefined {
  const outside = nodes.filter(({ operator }) => operator === 'RotaryEmbedding').map(({ domain, inputs }) => inputs[domain === '' ? 1 : 2] ?? '');
  const lengths = [...layers.map(({ cosines }) => cosines), ...outside].flatMap((name) => tableDims(name, graph)?.[0] ?? []);
  return lengths.length === 0 ? undefined : Math.min(...lengths);
}

/** Positions and dims of a table of the file, which may be of another type there. */
function tableDims(name: string, { tensors, nodes }: OnnxGraph): readonly number[] | undefined {
  const cast = nodes.find(({ operator, outputs }) => operator === 'Cast' && outputs.includes(name));
  const dims = tensors.get(cast?.inputs[0] ?? name)?.dims;
  return dims?.length === 2 ? dims : undefined;
}
