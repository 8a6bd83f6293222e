// AttentionPaths: attention that an exporter wrote in several nodes, by the paths between them: from a Softmax to the products with V,
// and back to those of Q and K, which have the past before them. What the nodes on a path compute is not read here: UnfusedAttention
// computes them, and sees.

import type { OnnxGraph, OnnxNode } from './graph.js';

/** A graph, and what makes each of its values. */
export interface Paths {
  readonly graph: OnnxGraph;
  readonly makers: ReadonlyMap<string, OnnxNode>;
}

/** Nodes of a path, at most; more is a mistake. */
const longest = 12;

/** What K and V go through between the past and a product: other shapes of the same, and a factor. */
const shaping = new Set(['Transpose', 'Reshape', 'Unsqueeze', 'Squeeze', 'Expand', 'Tile', 'Cast', 'Identity', 'Mul', 'Div']);
/** What scores go through before Softmax, but for masks. */
const scaling = new Set(['Mul', 'Div', 'Tanh', 'Cast', 'Identity']);
/** What weights of attention go through before the product with V. */
const passing = new Set(['Cast', 'Identity', 'Dropout', 'Where']);
/** What attention's output goes through before the layer's next product. */
const following = new Set(['Transpose', 'Reshape', 'Cast', 'Identity', 'Mul', 'Squeeze', 'Unsqueeze', 'Flatten']);

interface PastParts {
  /** An input of the graph. */
  readonly past: string;
  /** The new tokens'. */
  readonly added: string;
  /** Both. */
  readonly present: string;
}

/** A value that is a past with new tokens behind it. */
function splitPast(name: string, { graph, makers }: Paths): PastParts | undefined {
  const maker = makers.get(name);
  const [past, added] = maker?.inputs ?? [];
  if (maker?.operator !== 'Concat' || maker.inputs.length !== 2 || !graph.inputs.some((input) => input.name === past)) return undefined;
  return { past: past!, added: added!, present: name };
}

/** The past that a product's operand comes from. */
export function pastBefore(name: string, paths: Paths, steps = longest): PastParts | undefined {
  const parts = splitPast(name, paths);
  const maker = paths.makers.get(name);
  if (parts !== undefined || maker === undefined || steps === 0 || !shaping.has(maker.operator)) return parts;
  for (const input of maker.operator === 'Mul' ? maker.inputs : maker.inputs.slice(0, 1)) {
    const found = pastBefore(input, paths, steps - 1);
    if (found !== undefined) return found;
  }
  return undefined;
}

interface Scores {
  readonly queries: string;
  readonly keys: PastParts;
  /** The products before a mask is added. */
  readonly scores: string;
  readonly masks: readonly string[];
}

/** The product of Q and K that scores come from. */
export function scoresBefore(name: string, paths: Paths, steps = longest): Scores | undefined {
  const maker = paths.makers.get(name);
  if (maker === undefined || steps === 0) return undefined;
  const [first, second] = maker.inputs;
  if (maker.operator === 'MatMul') {
    const keys = pastBefore(second ?? '', paths);
    return keys && { queries: first!, keys, scores: name, masks: [] };
  }
  if (maker.operator !== 'Add' && !scaling.has(maker.operator)) return undefined;
  for (const [input, other] of [[first, second], [second, first]]) {
    const found = scoresBefore(input ?? '', paths, steps - 1);
    if (found === undefined) continue;
    if (maker.operator === 'Add') return { ...found, masks: [...found.masks, other!] };
    return found.masks.length === 0 ? { ...found, scores: name } : found;
  }
  return undefined;
}

/** The product that weights of attention go to. */
export function productBehind(name: string, { graph: { nodes } }: Paths): OnnxNode | undefined {
  let value = name;
  for (let step = 0; step < longest; step += 1) {
    const readers = nodes.filter(({ inputs }) => inputs.includes(value));
    const product = readers.find(({ operator, inputs }) => operator === 'MatMul' && inputs[0] === value);
    if (product !== undefined) return product;
    const next = readers.find(({ operator }) => passing.has(operator));
    if (next === undefined) return undefined;
    value = next.outputs[0] ?? '';
  }
  return undefined;
}

/** The heads of an output of attention, by the weights that all of them are multiplied with next. */
export function headsBehind(output: string, valueDim: number, { graph, makers }: Paths): number | undefined {
  let value = output;
  for (let step = 0; step < longest; step += 1) {
    const readers = graph.nodes.filter(({ inputs }) => inputs.includes(value));
    for (const { operator, inputs, attributes } of readers) {
      let width: number | undefined;
      if (operator === 'MatMulNBits') width = attributes.get('K')?.integer;
      else if (operator === 'MatMul' || operator === 'Gemm') width = weightRows(inputs[1] ?? '', { graph, makers }, attributes.get('transB')?.integer === 1);
      if (width !== undefined) return width > 0 && width % valueDim === 0 ? width / valueDim : undefined;
    }
    const next = readers.find(({ operator }) => following.has(operator));
    if (next === undefined) return undefined;
    value = next.outputs[0] ?? '';
  }
  return undefined;
}

/** Rows of a matrix of weights, or columns where it is turned. */
function weightRows(name: string, { graph, makers }: Paths, isTurned: boolean): number | undefined {
  let value = name;
  let turned = isTurned;
  for (let step = 0; step < longest; step += 1) {
    const tensor = graph.tensors.get(value);
    if (tensor !== undefined) return tensor.dims.length === 2 ? tensor.dims[turned ? 1 : 0] : undefined;
    const maker = makers.get(value);
    if (maker === undefined || !['Transpose', 'Cast', 'DequantizeLinear', 'Identity'].includes(maker.operator)) return undefined;
    if (maker.operator === 'Transpose') turned = !turned;
    value = maker.inputs[0] ?? '';
  }
  return undefined;
}
