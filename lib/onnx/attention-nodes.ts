// AttentionNodes: the attention of a graph that keeps K and V from run to run, in the forms that are known, each with what
// it computes. A form that would be computed otherwise than its exporter meant is refused, with the node's name.

import { formatList } from '../base/format.js';
import { modelError } from '../llama/model-error.js';
import { headsBehind, pastBefore, productBehind, scoresBefore, type Paths } from './attention-paths.js';
import { makersOf, type OnnxGraph, type OnnxNode, type OnnxValue } from './graph.js';

/** One layer's attention. Names of values; '' where there is none. */
export interface AttentionNode {
  readonly node: OnnxNode;
  readonly queries: string;
  /** '' with `values`: packed behind the queries of each token. */
  readonly keys: string;
  readonly values: string;
  readonly output: string;
  /** [query head]: scores that take weight and give no value. */
  readonly sinks: string;
  /** [position, half of the dims that are turned]; '' where rotary positions are outside, or none. */
  readonly cosines: string;
  readonly sines: string;
  readonly areNeighbours: boolean;
  readonly heads: number;
  readonly kvHeads: number;
  readonly dim: number;
  readonly valueDim: number;
  /** 0: 1/√dim. */
  readonly scale: number;
  /** 0: all tokens. */
  readonly window: number;
  readonly softcap: number;
  readonly hasSmoothSoftmax: boolean;
  /** What is added to the scores: to be seen as the mask of a causal text before it may be left out. */
  readonly mask: string;
  /** Of K and V: a number of ONNX. */
  readonly type: number;
  /** Inputs of the graph that the node alone may read. */
  readonly past: readonly string[];
  /** Outputs of the graph that are the past with the new tokens. */
  readonly present: readonly string[];
  /** Whether queries, keys, values and the output are [batch, heads, tokens, dim]. Default: [batch, tokens, heads · dim]. */
  readonly hasHeadsFirst?: boolean;
  /** Of attention in several nodes: what shows by computing what they do (UnfusedAttention). */
  readonly unfused?: {
    /** The products, before a mask is added; '': scale and softcap are known. */
    readonly scores: string;
  };
}

/** A node that attention may end with. */
interface Found extends Paths {
  readonly node: OnnxNode;
  /** The error for a node that cannot be computed. */
  readonly refuse: (problem: string) => Error;
}

/** The attention with a past in a graph, layer by layer. Throws KV_MODEL_INVALID, which names the node that cannot be computed. */
export function attentionNodes(graph: OnnxGraph, source: string): AttentionNode[] {
  const makers = makersOf(graph);
  return graph.nodes.flatMap((node) => {
    const read = forms[`${node.domain}.${node.operator}`];
    const layer = read?.({ graph, makers, node, refuse: refusalOf(node, source) });
    return layer === undefined ? [] : [layer];
  });
}

/** The error for a node that cannot be computed. */
export const refusalOf = (node: OnnxNode, source: string) => (problem: string, options: { readonly cause?: unknown } = {}): Error =>
  modelError(`${source}: the node ${nodeText(node)} ${problem}. Export the model without it.`, options);

/** `"name" (Operator)`. */
export const nodeText = ({ name, operator }: OnnxNode): string => `${JSON.stringify(name)} (${operator})`;

const forms: Readonly<Record<string, (found: Found) => AttentionNode | undefined>> = {
  'com.microsoft.GroupQueryAttention': readGrouped,
  'com.microsoft.MultiHeadAttention': readMultiHead,
  '.Attention': readStandard,
  '.Softmax': readSoftmax,
};

function readGrouped({ graph, node, refuse }: Found): AttentionNode {
  const [queries, keys, values, pastKeys, pastValues, , , cosines, sines, positions, mask, sinks, ...more] = optional(node, 12);
  const integers = readAttributes(node, refuse, ['num_heads', 'kv_num_heads', 'do_rotary', 'rotary_interleaved', 'local_window_size', 'smooth_softmax']);
  if (more.some((name) => name !== '')) throw refuse('keeps K and V quantized');
  if (positions !== '' && positions !== 'position_ids') throw refuse(`takes positions from ${JSON.stringify(positions)}`);
  const heads = integers('num_heads');
  const kvHeads = integers('kv_num_heads');
  const { dim, type } = pastOf(graph, pastKeys!, kvHeads, refuse);
  const { dim: valueDim } = pastOf(graph, pastValues!, kvHeads, refuse);
  const hasRotary = integers('do_rotary') === 1;
  if (hasRotary && (cosines === '' || sines === '')) throw refuse('turns by positions, and has no table of cosines and sines');
  return {
    node, queries: queries!, keys: keys!, values: values!, output: node.outputs[0] ?? '', sinks: sinks!,
    cosines: hasRotary ? cosines! : '', sines: hasRotary ? sines! : '', areNeighbours: integers('rotary_interleaved') === 1,
    heads, kvHeads, dim, valueDim, scale: floatOf(node, 'scale'), window: Math.max(0, integers('local_window_size')),
    softcap: floatOf(node, 'softcap'), hasSmoothSoftmax: integers('smooth_softmax') === 1, mask: mask!, type, past: [pastKeys!, pastValues!], present: node.outputs.slice(1),
  };
}

function readMultiHead({ graph, node, refuse }: Found): AttentionNode {
  const [queries, keys, values, bias, padding, mask, pastKeys, pastValues, ...more] = optional(node, 8);
  const integers = readAttributes(node, refuse, ['num_heads', 'unidirectional']);
  if (more.some((name) => name !== '')) throw refuse('takes a buffer of the past, or of beams');
  if (bias !== '') throw refuse('adds a bias to Q, K and V');
  if (padding !== '') throw refuse('takes a mask of padded keys');
  if (keys === '' || values === '') throw refuse('takes K and V packed');
  const heads = integers('num_heads');
  const { dim, type } = pastOf(graph, pastKeys!, heads, refuse);
  const { dim: valueDim } = pastOf(graph, pastValues!, heads, refuse);
  if (mask === '' && integers('unidirectional') !== 1) throw refuse('lets tokens see the tokens after them');
  return {
    ...plain, node, queries: queries!, keys: keys!, values: values!, output: node.outputs[0] ?? '', heads, kvHeads: heads, dim, valueDim,
    scale: floatOf(node, 'scale'), mask: mask!, type, past: [pastKeys!, pastValues!], present: node.outputs.slice(1),
  };
}

/** `Attention` of ai.onnx (opset 23). Exporters without one node for it put the past before K and V by nodes of their own. */
function readStandard({ graph, makers, node, refuse }: Found): AttentionNode {
  const [queries, keys, values, mask, pastKeys, pastValues, lengths] = optional(node, 7);
  const integers = readAttributes(node, refuse, ['is_causal', 'q_num_heads', 'kv_num_heads', 'softmax_precision', 'qk_matmul_output_mode']);
  if (lengths !== '') throw refuse('takes lengths of padded keys');
  if ((node.outputs[3] ?? '') !== '') throw refuse('gives its scores as an output');
  if (mask === '' && integers('is_causal') !== 1) throw refuse('lets tokens see the tokens after them');
  const hasHeadsFirst = integers('q_num_heads') === 0;
  const apart = pastKeys === '' ? [keys!, values!].map((name) => pastBefore(name, { graph, makers })) : [];
  const [keyParts, valueParts] = apart;
  const past = keyParts && valueParts ? [keyParts.past, valueParts.past] : [pastKeys!, pastValues!];
  const kvHeads = kvHeadsOf(graph, past[0]!, refuse);
  const { dim, type } = pastOf(graph, past[0]!, kvHeads, refuse);
  const { dim: valueDim } = pastOf(graph, past[1]!, kvHeads, refuse);
  const output = node.outputs[0] ?? '';
  const heads = hasHeadsFirst ? headsBehind(output, valueDim, { graph, makers }) : integers('q_num_heads');
  if (heads === undefined) throw refuse('does not say how many heads its queries have');
  return {
    ...plain, node, queries: queries!, keys: keyParts?.added ?? keys!, values: valueParts?.added ?? values!, output, heads, kvHeads, dim, valueDim,
    scale: floatOf(node, 'scale'), softcap: floatOf(node, 'softcap'), mask: mask!, type, past,
    present: keyParts && valueParts ? [keyParts.present, valueParts.present] : node.outputs.slice(1), hasHeadsFirst,
    ...keyParts && valueParts ? { unfused: { scores: '' } } : {},
  };
}

/** Attention of a Softmax whose weights go to values with a past; undefined for another Softmax. */
function readSoftmax({ graph, makers, node, refuse }: Found): AttentionNode | undefined {
  const paths = { graph, makers };
  const product = productBehind(node.outputs[0] ?? '', paths);
  const values = product && pastBefore(product.inputs[1] ?? '', paths);
  if (product === undefined || values === undefined) return undefined;
  const found = scoresBefore(node.inputs[0] ?? '', paths);
  if (found === undefined) throw refuse('takes scores that are no products of Q and of K with its past, scaled, with a mask added');
  const { queries, keys, scores, masks } = found;
  if (masks.length === 0) throw refuse('lets tokens see the tokens after them: nothing is added to its scores');
  if (masks.length > 1) throw refuse('takes scores to which more than one mask is added');
  const kvHeads = kvHeadsOf(graph, keys.past, refuse);
  const { dim, type } = pastOf(graph, keys.past, kvHeads, refuse);
  const { dim: valueDim } = pastOf(graph, values.past, kvHeads, refuse);
  const output = product.outputs[0] ?? '';
  const heads = headsBehind(output, valueDim, paths);
  if (heads === undefined) throw refuse('does not say how many heads its queries have');
  return {
    ...plain, node: product, queries, keys: keys.added, values: values.added, output, heads, kvHeads, dim, valueDim, mask: masks[0]!, type,
    past: [keys.past, values.past], present: [keys.present, values.present], hasHeadsFirst: true, unfused: { scores },
  };
}

/** What attention is that says no more. */
const plain = { sinks: '', cosines: '', sines: '', areNeighbours: false, scale: 0, window: 0, softcap: 0, hasSmoothSoftmax: false } as const;

/** The inputs of a node; '' for those that are left out at the end. */
const optional = ({ inputs }: OnnxNode, count: number): string[] => [...inputs, ...new Array<string>(Math.max(0, count - inputs.length)).fill('')];

/** Floats, and what only says how masked scores are written. */
const harmless = ['scale', 'softcap', 'mask_filter_value'];

/** Returns what reads an integer. Refuses attributes that have a value and are not known here. */
function readAttributes(node: OnnxNode, refuse: Found['refuse'], known: readonly string[]): (name: string) => number {
  const others = [...node.attributes].filter(([name, { integer, float }]) =>
    !known.includes(name) && !harmless.includes(name) && (integer !== 0 || float !== 0));
  if (others.length > 0) throw refuse(`has ${formatList(others.map(([name]) => `\`${name}\``), 'and')}`);
  return (name) => node.attributes.get(name)?.integer ?? 0;
}

/** A float attribute; 0 where the node has none. */
const floatOf = ({ attributes }: OnnxNode, name: string): number => attributes.get(name)?.float ?? 0;

/** The heads of a past [batch, heads, tokens, dim]. */
function kvHeadsOf({ inputs }: OnnxGraph, name: string, refuse: Found['refuse']): number {
  const heads = inputs.find((input) => input.name === name)?.dims?.[1];
  if (name !== '' && typeof heads === 'string') throw refuse(`has a past ${JSON.stringify(name)} whose heads are not said`);
  return typeof heads === 'number' ? heads : 1;
}

/** The head dim of a past [batch, heads, tokens, dim]. */
function pastOf({ inputs }: OnnxGraph, name: string, kvHeads: number, refuse: Found['refuse']): { readonly dim: number; readonly type: number } {
  const past: OnnxValue | undefined = inputs.find((input) => input.name === name);
  if (name === '') throw refuse('has no past');
  if (past === undefined) throw refuse(`takes its past from ${JSON.stringify(name)}, which is no input of the graph`);
  const dim = past.dims?.[3];
  if (past.dims?.length !== 4 || past.dims[1] !== kvHeads || typeof dim !== 'number' || dim < 1) {
    throw refuse(`has a past ${JSON.stringify(name)} that is not [batch, ${kvHeads}, tokens, elements of a head]`);
  }
  return { dim, type: past.type };
}
