// onnxModel: an ONNX model as bytes, from its nodes, inputs and outputs. It writes the few fields of onnx.proto that a graph
// without weights needs (protobuf: a key of field number and wire type before every value), and checks nothing: the runtime
// does when it loads the model.

export interface OnnxNode {
  readonly operator: string;
  /** Operator set; '' is ai.onnx. */
  readonly domain: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly integers?: Readonly<Record<string, number>>;
}

/** A dimension by name may have another length in every run. */
export interface OnnxValue {
  readonly name: string;
  readonly type: 'float32' | 'int64';
  readonly shape: readonly (number | string)[];
}

export interface OnnxGraph {
  readonly nodes: readonly OnnxNode[];
  readonly inputs: readonly OnnxValue[];
  readonly outputs: readonly OnnxValue[];
}

const IR_VERSION = 10;
const versions = { '': 21, 'com.microsoft': 1 };
const types = { float32: 1, int64: 7 };
const integerAttribute = 2;

export function onnxModel({ nodes, inputs, outputs }: OnnxGraph): Uint8Array {
  const graph = [
    ...nodes.flatMap((node) => bytes(1, nodeMessage(node))), ...text(2, 'graph'),
    ...inputs.flatMap((value) => bytes(11, valueMessage(value))), ...outputs.flatMap((value) => bytes(12, valueMessage(value))),
  ];
  const operatorSets = Object.entries(versions).flatMap(([domain, version]) =>
    bytes(8, [...text(1, domain), ...integer(2, version)]));
  return Uint8Array.from([...integer(1, IR_VERSION), ...bytes(7, graph), ...operatorSets]);
}

function nodeMessage({ operator, domain, inputs, outputs, integers = {} }: OnnxNode): number[] {
  const attributes = Object.entries(integers).flatMap(([name, value]) =>
    bytes(5, [...text(1, name), ...integer(3, value), ...integer(20, integerAttribute)]));
  return [
    ...inputs.flatMap((name) => text(1, name)), ...outputs.flatMap((name) => text(2, name)), ...text(4, operator), ...attributes,
    ...text(7, domain),
  ];
}

function valueMessage({ name, type, shape }: OnnxValue): number[] {
  const dimensions = shape.flatMap((length) => bytes(1, typeof length === 'number' ? integer(1, length) : text(2, length)));
  const tensor = [...integer(1, types[type]), ...bytes(2, dimensions)];
  return [...text(1, name), ...bytes(2, bytes(1, tensor))];
}

function integer(field: number, value: number): number[] {
  return [...variableLength(field << 3), ...variableLength(value)];
}

function bytes(field: number, content: readonly number[]): number[] {
  return [...variableLength(field << 3 | 2), ...variableLength(content.length), ...content];
}

function text(field: number, content: string): number[] {
  return bytes(field, [...new TextEncoder().encode(content)]);
}

/** Seven bits a byte, the lowest first; the eighth says that more follow. Not for numbers below 0. */
function variableLength(value: number): number[] {
  return value < 128 ? [value] : [value & 127 | 128, ...variableLength(value >>> 7)];
}
