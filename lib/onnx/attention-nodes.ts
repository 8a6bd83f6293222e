// AttentionNodes: the attention of a graph that keeps K and V from run to run, in the forms that are known, each with what
// it computes. A form that would be computed otherwise than its exporter meant is refused, with the node's name.

import { formatList } from '../base/format.js';
import { modelError } from '../llama/model-error.js';
import type { OnnxGraph, OnnxNode, OnnxValue } from './graph.js';

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
}

interface Found {
  readonly graph: OnnxGraph;
  readonly node: OnnxNode;
  readonly refuse: (problem: string) => Error;
}

/** The attention with a past in a graph, layer by layer. Throws KV_MODEL_INVALID, which names the node that cannot be computed. */
export function attentionNodes(graph: OnnxGraph, source: string): AttentionNode[] {
  return graph.nodes.flatMap((node) => {
    const read = forms[`${node.domain}.${node.operator}`];
    if (read === undefined) return [];
    const refuse = (problem: string): Error => modelError(`${source}: the node ${nodeText(node)} ${problem}. Export the model without it.`);
    return [read({ graph, node, refuse })];
  });
}

/** `"name" (Operator)`. */
export const nodeText = ({ name, operator }: OnnxNode): string => `${JSON.stringify(name)} (${operator})`;

const forms: Readonly<Record<string, (found: Found) => AttentionNode>> = {
  'com.microsoft.GroupQueryAttention': readGrouped,
  'com.microsoft.MultiHeadAttention': readMultiHead,
};

function readGrouped({ graph, node, refuse }: Found): AttentionNode {
  const [queries, keys, values, pastKeys, pastValues, , , cosines, sines, positions, mask, sinks, ...more] = optional(node, 12);
  const integers = readAttributes(node, refuse, ['num_heads', 'kv_num_heads', 'do_rotary', 'rotary_interleaved', 'local_window_size', 'smooth_softmax']);
  const floats = node.attributes;
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
    heads, kvHeads, dim, valueDim, scale: floats.get('scale')?.float ?? 0, window: Math.max(0, integers('local_window_size')),
    softcap: floats.get('softcap')?.float ?? 0, hasSmoothSoftmax: integers('smooth_softmax') === 1, mask: mask!, type, past: [pastKeys!, pastValues!],
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
    node, queries: queries!, keys: keys!, values: values!, output: node.outputs[0] ?? '', sinks: '', cosines: '', sines: '', areNeighbours: false,
    heads, kvHeads: heads, dim, valueDim, scale: node.attributes.get('scale')?.float ?? 0, window: 0, softcap: 0, hasSmoothSoftmax: false,
    mask: mask!, type, past: [pastKeys!, pastValues!],
  };
}

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
