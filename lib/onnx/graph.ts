// OnnxGraph: an ONNX file as nodes and values by name, read from its bytes and written as others. Weights are neither read
// nor copied while reading; tensors in files of their own stay there. Throws KV_MODEL_INVALID for bytes that are no graph.

import { modelError } from '../llama/model-error.js';
import {
  bytesField, fieldParts, fieldsOf, floatField, integerField, integersOf, joinBytes, ProtobufError, textField, textOf,
} from './protobuf.js';

/** Types of elements, by ONNX's numbers. */
export const elements = { float32: 1, uint8: 2, int32: 6, int64: 7, bool: 9, float16: 10 } as const;

export interface OnnxAttribute {
  readonly integer: number;
  readonly float: number;
  readonly raw: Uint8Array;
}

export interface OnnxNode {
  readonly name: string;
  readonly operator: string;
  /** '' is ai.onnx. */
  readonly domain: string;
  /** '' where an optional one is left out. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: ReadonlyMap<string, OnnxAttribute>;
  /** Values of the graph that graphs inside the node read. */
  readonly captured: readonly string[];
  /** The node's message. */
  readonly raw: Uint8Array;
}

export interface OnnxValue {
  readonly name: string;
  /** Of the elements; 0 for what is no tensor. */
  readonly type: number;
  /** A number, or a name where it differs from run to run; undefined: the file does not say. */
  readonly dims: readonly (number | string)[] | undefined;
  readonly raw: Uint8Array;
}

/** A tensor of the file. */
export interface OnnxTensor {
  readonly name: string;
  readonly type: number;
  readonly dims: readonly number[];
  readonly raw: Uint8Array;
}

export interface OnnxGraph {
  readonly nodes: readonly OnnxNode[];
  readonly inputs: readonly OnnxValue[];
  readonly outputs: readonly OnnxValue[];
  readonly tensors: ReadonlyMap<string, OnnxTensor>;
  /** What else is in the model and in its graph, and is written again as it is. */
  readonly modelFields: readonly Uint8Array[];
  readonly graphFields: readonly Uint8Array[];
}

/** Graphs within graphs; more is a mistake. */
const deepest = 16;

/** Reads a file's bytes, which the result keeps. `source` names it in errors. */
export function readGraph(bytes: Uint8Array, source: string): OnnxGraph {
  try {
    let graph: Uint8Array | undefined;
    const modelFields: Uint8Array[] = [];
    for (const field of fieldsOf(bytes)) {
      if (field.number !== 7) modelFields.push(field.raw);
      else graph = field.bytes;
    }
    if (graph === undefined) throw new ProtobufError('it has no graph');
    return { ...readGraphMessage(graph), modelFields };
  } catch (error) {
    if (!(error instanceof ProtobufError)) throw error;
    throw noModel(source, error);
  }
}

/** The error for bytes that are no graph. */
export const noModel = (source: string, cause: ProtobufError): Error =>
  modelError(`${source} is no ONNX model: ${cause.message}. Give a file that an exporter has written, whole.`, { cause });

function readGraphMessage(message: Uint8Array): Omit<OnnxGraph, 'modelFields'> {
  const nodes: OnnxNode[] = [];
  const inputs: OnnxValue[] = [];
  const outputs: OnnxValue[] = [];
  const tensors = new Map<string, OnnxTensor>();
  const graphFields: Uint8Array[] = [];
  for (const { number, bytes, raw } of fieldsOf(message)) {
    if (number === 1) nodes.push(readNode(bytes, 0));
    else if (number === 5) {
      const tensor = readTensor(bytes);
      tensors.set(tensor.name, tensor);
    } else if (number === 11) inputs.push(readValue(bytes));
    else if (number === 12) outputs.push(readValue(bytes));
    else if (number !== 13) graphFields.push(raw); // 13: shapes of values inside, which do not hold any more
  }
  return { nodes, inputs: inputs.filter(({ name }) => !tensors.has(name)), outputs, tensors, graphFields };
}

function readNode(message: Uint8Array, depth: number): OnnxNode {
  const inputs: string[] = [];
  const outputs: string[] = [];
  const attributes = new Map<string, OnnxAttribute>();
  const captured = new Set<string>();
  let name = '';
  let operator = '';
  let domain = '';
  for (const { number, bytes } of fieldsOf(message)) {
    if (number === 1) inputs.push(textOf(bytes));
    else if (number === 2) outputs.push(textOf(bytes));
    else if (number === 3) name = textOf(bytes);
    else if (number === 4) operator = textOf(bytes);
    else if (number === 7) domain = textOf(bytes);
    else if (number === 5) readAttribute(bytes, attributes, captured, depth);
  }
  return { name, operator, domain: domain === 'ai.onnx' ? '' : domain, inputs, outputs, attributes, captured: [...captured], raw: message };
}

function readAttribute(message: Uint8Array, into: Map<string, OnnxAttribute>, captured: Set<string>, depth: number): void {
  let name = '';
  let integer = 0;
  let float = 0;
  for (const { number, integer: value, bytes } of fieldsOf(message)) {
    if (number === 1) name = textOf(bytes);
    else if (number === 2) {
      if (bytes.length !== 4) throw new ProtobufError('a float has not four bytes');
      float = new DataView(bytes.buffer, bytes.byteOffset).getFloat32(0, true);
    } else if (number === 3) integer = value;
    else if (number === 6 || number === 11) capture(bytes, captured, depth + 1);
  }
  into.set(name, { integer, float, raw: message });
}

/** Every name that a graph inside a node reads: a few too many, which keeps what it needs. */
function capture(graph: Uint8Array, captured: Set<string>, depth: number): void {
  if (depth > deepest) throw new ProtobufError(`graphs lie in each other, more than ${deepest} deep`);
  for (const { number, bytes } of fieldsOf(graph)) {
    if (number === 12) captured.add(readValue(bytes).name);
    if (number !== 1) continue;
    const node = readNode(bytes, depth);
    for (const name of [...node.inputs, ...node.captured]) captured.add(name);
  }
}

function readTensor(message: Uint8Array): OnnxTensor {
  const dims: number[] = [];
  let type = 0;
  let name = '';
  for (const field of fieldsOf(message)) {
    if (field.number === 1) dims.push(...integersOf(field));
    else if (field.number === 2) type = field.integer;
    else if (field.number === 8) name = textOf(field.bytes);
  }
  return { name, type, dims, raw: message };
}

function readValue(message: Uint8Array): OnnxValue {
  let name = '';
  let type = 0;
  let dims: (number | string)[] | undefined;
  for (const value of fieldsOf(message)) {
    if (value.number === 1) name = textOf(value.bytes);
    if (value.number !== 2) continue;
    for (const kind of fieldsOf(value.bytes)) {
      if (kind.number !== 1) continue;
      for (const tensor of fieldsOf(kind.bytes)) {
        if (tensor.number === 1) type = tensor.integer;
        else if (tensor.number === 2) dims = readDims(tensor.bytes);
      }
    }
  }
  return { name, type, dims, raw: message };
}

function readDims(shape: Uint8Array): (number | string)[] {
  const dims: (number | string)[] = [];
  for (const { number, bytes } of fieldsOf(shape)) {
    if (number !== 1) continue;
    let dim: number | string = '';
    for (const field of fieldsOf(bytes)) dim = field.number === 1 ? field.integer : textOf(field.bytes);
    dims.push(dim);
  }
  return dims;
}

/** What a node is made of. Integers and floats, also lists of them, are told apart by where they stand. */
export interface NewNode {
  readonly name: string;
  readonly operator: string;
  readonly domain?: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly integers?: Readonly<Record<string, number | readonly number[]>>;
  readonly floats?: Readonly<Record<string, number | readonly number[]>>;
}

export function makeNode({ name, operator, domain = '', inputs, outputs, integers = {}, floats = {} }: NewNode): OnnxNode {
  const raw = joinBytes([
    ...inputs.map((input) => textField(1, input)), ...outputs.map((output) => textField(2, output)), textField(3, name), textField(4, operator),
    ...Object.entries(integers).map(([key, value]) => bytesField(5, textField(1, key), ...integerFields(value))),
    ...Object.entries(floats).map(([key, value]) => bytesField(5, textField(1, key), ...floatFields(value))),
    textField(7, domain),
  ]);
  return readNode(raw, 0);
}

const integerFields = (value: number | readonly number[]): Uint8Array[] =>
  (typeof value === 'number' ? [integerField(3, value), integerField(20, 2)] : [...value.map((one) => integerField(8, one)), integerField(20, 7)]);

const floatFields = (value: number | readonly number[]): Uint8Array[] =>
  (typeof value === 'number' ? [floatField(2, value), integerField(20, 1)] : [...value.map((one) => floatField(7, one)), integerField(20, 6)]);

/** The same node with other inputs or outputs. */
export function renamed(node: OnnxNode, names: ReadonlyMap<string, string>): OnnxNode {
  const parts: Uint8Array[] = [];
  for (const { number, bytes, raw } of fieldsOf(node.raw)) {
    const other = number === 1 || number === 2 ? names.get(textOf(bytes)) : undefined;
    parts.push(other === undefined ? raw : textField(number, other));
  }
  return readNode(joinBytes(parts), 0);
}

export function makeValue(name: string, type: number, dims: readonly (number | string)[] | undefined): OnnxValue {
  const shape = dims?.map((dim) => bytesField(1, typeof dim === 'number' ? integerField(1, dim) : textField(2, dim)));
  const raw = joinBytes([
    textField(1, name), bytesField(2, bytesField(1, integerField(1, type), ...shape === undefined ? [] : [bytesField(2, ...shape)])),
  ]);
  return { name, type, dims, raw };
}

/** What makes each value. */
export function makersOf({ nodes }: Pick<OnnxGraph, 'nodes'>): ReadonlyMap<string, OnnxNode> {
  const makers = new Map<string, OnnxNode>();
  for (const node of nodes) for (const output of node.outputs) if (output !== '') makers.set(output, node);
  return makers;
}

/** The nodes that some values need, in the graph's order, and all that they read. */
export function neededFor(names: readonly string[], { nodes }: Pick<OnnxGraph, 'nodes'>): { readonly nodes: readonly OnnxNode[]; readonly values: ReadonlySet<string> } {
  const makers = makersOf({ nodes });
  const values = new Set(names);
  const needed = new Set<OnnxNode>();
  for (const name of values) { // a set's iteration comes to what is added meanwhile
    const maker = makers.get(name);
    if (maker === undefined || needed.has(maker)) continue;
    needed.add(maker);
    for (const input of [...maker.inputs, ...maker.captured]) if (input !== '') values.add(input);
  }
  return { nodes: nodes.filter((node) => needed.has(node)), values };
}

/** Operators that are not ONNX's, nor onnxruntime's: the cache's attention. */
export const ownDomain = 'virtualkv';

/** What a model is made of. */
export interface GraphContent {
  readonly nodes: readonly OnnxNode[];
  readonly inputs: readonly OnnxValue[];
  readonly outputs: readonly OnnxValue[];
}

/** A model of some nodes of a graph; only what they read goes with them. */
export function writeGraph(graph: OnnxGraph, { nodes, inputs, outputs }: GraphContent): Uint8Array {
  const { values } = neededFor(outputs.map(({ name }) => name), { nodes });
  const parts = [
    ...nodes.map(({ raw }) => bytesField(1, raw)), ...graph.graphFields,
    ...[...graph.tensors.values()].filter(({ name }) => values.has(name)).flatMap(({ raw }) => fieldParts(5, [raw])),
    ...inputs.map(({ raw }) => bytesField(11, raw)), ...outputs.map(({ raw }) => bytesField(12, raw)),
  ];
  const domain = bytesField(8, textField(1, ownDomain), integerField(2, 1));
  return joinBytes([...graph.modelFields, domain, ...fieldParts(7, parts)]); // what is copied is copied once
}
