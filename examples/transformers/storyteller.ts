// writeStoryteller: the storyteller of examples/llama as transformers.js and `vkv serve --onnx` read models: its
// weights in an ONNX graph as exporters write it, with GroupQueryAttention, and its tokenizer beside it. Protobuf by
// hand: a key of field number and wire type before every value.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

const storyteller = path.join(__dirname, '..', '..', 'examples', 'llama', 'storyteller');

interface Config {
  readonly hidden_size: number;
  readonly num_hidden_layers: number;
  readonly num_attention_heads: number;
  readonly num_key_value_heads: number;
  readonly head_dim: number;
  readonly rms_norm_eps: number;
  readonly rope_theta: number;
  readonly max_position_embeddings: number;
  readonly vocab_size: number;
}

/** Writes it to a folder, which is made. */
export function writeStoryteller(folder: string): void {
  mkdirSync(path.join(folder, 'onnx'), { recursive: true });
  for (const file of ['config.json', 'tokenizer.json', 'tokenizer_config.json'])
    copyFileSync(path.join(storyteller, file), path.join(folder, file));
  writeFileSync(path.join(folder, 'generation_config.json'), JSON.stringify({ eos_token_id: 1, pad_token_id: 1 }));
  const config = JSON.parse(readFileSync(path.join(storyteller, 'config.json'), 'utf8')) as Config;
  writeFileSync(
    path.join(folder, 'onnx', 'model.onnx'),
    graphOf(config, readWeights(path.join(storyteller, 'model.safetensors'))),
  );
}

interface Weight {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

/** Tensors of float16 by name, as floats. */
function readWeights(file: string): ReadonlyMap<string, Weight> {
  const bytes = readFileSync(file);
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + headerBytes)) as Record<
    string,
    { shape: number[]; data_offsets: [number, number] }
  >;
  return new Map(
    Object.entries(header)
      .filter(([name]) => name !== '__metadata__')
      .map(
        ([
          name,
          {
            shape,
            data_offsets: [from, to],
          },
        ]) => {
          const data = Float32Array.from({ length: (to - from) / 2 }, (_, at) =>
            half(bytes.readUInt16LE(8 + headerBytes + from + 2 * at)),
          );
          return [name, { shape, data }];
        },
      ),
  );
}

function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  return sign * (exponent === 0 ? (bits & 1023) * 2 ** -24 : (1 + (bits & 1023) / 1024) * 2 ** (exponent - 15));
}

const types = { float: 1, int32: 6, int64: 7 } as const;
type Attributes = Readonly<Record<string, number | { readonly float: number }>>;

function graphOf(config: Config, weights: ReadonlyMap<string, Weight>): Uint8Array {
  const {
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: dim,
  } = config;
  const { max_position_embeddings: positions, vocab_size: vocabulary } = config;
  const parts: Uint8Array[] = [];
  const node = (
    operator: string,
    inputs: readonly string[],
    outputs: readonly string[],
    attributes: Attributes = {},
    domain = '',
  ): string => {
    parts.push(
      bytes(
        1,
        ...inputs.map((name) => text(1, name)),
        ...outputs.map((name) => text(2, name)),
        text(3, outputs[0]!),
        text(4, operator),
        ...Object.entries(attributes).map(([name, value]) =>
          bytes(
            5,
            text(1, name),
            ...(typeof value === 'number'
              ? [integer(3, value), integer(20, 2)]
              : [float(2, value.float), integer(20, 1)]),
          ),
        ),
        text(7, domain),
      ),
    );
    return outputs[0]!;
  };
  const tensor = (name: string, type: number, shape: readonly number[], data: ArrayBufferView): string => {
    parts.push(
      bytes(
        5,
        ...shape.map((length) => integer(1, length)),
        integer(2, type),
        text(8, name),
        bytes(9, new Uint8Array(data.buffer, data.byteOffset, data.byteLength)),
      ),
    );
    return name;
  };
  const numbers = (name: string, shape: readonly number[], value: number): string =>
    tensor(name, types.int64, shape, BigInt64Array.of(BigInt(value)));
  const value = (field: number, name: string, type: number, shape: readonly (number | string)[]): void => {
    const dims = shape.map((length) => bytes(1, typeof length === 'number' ? integer(1, length) : text(2, length)));
    parts.push(bytes(field, text(1, name), bytes(2, bytes(1, integer(1, type), bytes(2, ...dims)))));
  };
  /** `from` · weightᵀ: files have [outputs, inputs]. */
  const product = (from: string, name: string, to: string): string => {
    const {
      shape: [outputs, inputs],
      data,
    } = weights.get(name)! as { shape: [number, number]; data: Float32Array };
    const turned = Float32Array.from(data, (_, at) => data[(at % outputs) * inputs + Math.floor(at / outputs)]!);
    return node('MatMul', [from, tensor(`${name}.turned`, types.float, [inputs, outputs], turned)], [to]);
  };
  const norm = (from: string, name: string, to: string): string => {
    tensor(name, types.float, [hidden], weights.get(name)!.data);
    return node('SimplifiedLayerNormalization', [from, name], [to], {
      axis: -1,
      epsilon: { float: config.rms_norm_eps },
      stash_type: 1,
    });
  };

  for (const [name, of] of [
    ['cosines', Math.cos],
    ['sines', Math.sin],
  ] as const) {
    const halves = dim / 2;
    tensor(
      name,
      types.float,
      [positions, halves],
      Float32Array.from({ length: positions * halves }, (_, at) =>
        of(Math.floor(at / halves) / config.rope_theta ** ((2 * (at % halves)) / dim)),
      ),
    );
  }
  numbers('one', [], 1);
  numbers('axis', [1], 1);
  node(
    'Cast',
    [node('Sub', [node('ReduceSum', ['attention_mask', 'axis'], ['lengths'], { keepdims: 0 }), 'one'], ['last'])],
    ['seqlens_k'],
    { to: types.int32 },
  );
  node(
    'Cast',
    [node('Gather', [node('Shape', ['attention_mask'], ['shape']), 'one'], ['columns'], { axis: 0 })],
    ['total'],
    { to: types.int32 },
  );
  value(11, 'input_ids', types.int64, ['batch_size', 'sequence']);
  value(11, 'attention_mask', types.int64, ['batch_size', 'total_sequence']);
  value(12, 'logits', types.float, ['batch_size', 'sequence', vocabulary]);

  const embeddings = weights.get('model.embed_tokens.weight')!;
  let state = node(
    'Gather',
    [tensor('embeddings', types.float, embeddings.shape, embeddings.data), 'input_ids'],
    ['state_0'],
    { axis: 0 },
  );
  for (let layer = 0; layer < layers; layer += 1) {
    const at = (name: string): string => `model.layers.${layer}.${name}`;
    const past = ['key', 'value'].map((kind) => `past_key_values.${layer}.${kind}`);
    const present = ['key', 'value'].map((kind) => `present.${layer}.${kind}`);
    for (const name of past) value(11, name, types.float, ['batch_size', kvHeads, 'past_sequence', dim]);
    for (const name of present) value(12, name, types.float, ['batch_size', kvHeads, 'total_sequence', dim]);
    const x = norm(state, at('input_layernorm.weight'), at('x'));
    const [q, k, v] = ['q', 'k', 'v'].map((kind) => product(x, at(`self_attn.${kind}_proj.weight`), at(kind))) as [
      string,
      string,
      string,
    ];
    node(
      'GroupQueryAttention',
      [q, k, v, ...past, 'seqlens_k', 'total', 'cosines', 'sines'],
      [at('attended'), ...present],
      { num_heads: heads, kv_num_heads: kvHeads, do_rotary: 1, rotary_interleaved: 0 },
      'com.microsoft',
    );
    const after = node('Add', [state, product(at('attended'), at('self_attn.o_proj.weight'), at('o'))], [at('after')]);
    const y = norm(after, at('post_attention_layernorm.weight'), at('y'));
    const gate = product(y, at('mlp.gate_proj.weight'), at('gate'));
    const opened = node('Mul', [gate, node('Sigmoid', [gate], [at('sigmoid')])], [at('opened')]);
    const gated = node('Mul', [opened, product(y, at('mlp.up_proj.weight'), at('up'))], [at('gated')]);
    state = node('Add', [after, product(gated, at('mlp.down_proj.weight'), at('down'))], [`state_${layer + 1}`]);
  }
  product(norm(state, 'model.norm.weight', 'normed'), 'model.embed_tokens.weight', 'logits');
  const operators = [bytes(8, text(1, ''), integer(2, 17)), bytes(8, text(1, 'com.microsoft'), integer(2, 1))];
  return Buffer.concat([integer(1, 8), ...operators, bytes(7, ...parts, text(2, 'storyteller'))]);
}

function varint(number: number): Uint8Array {
  const made: number[] = [];
  let rest = BigInt.asUintN(64, BigInt(number));
  for (; rest > 127n; rest >>= 7n) made.push(Number(rest & 127n) | 128);
  return Uint8Array.from([...made, Number(rest)]);
}

const integer = (field: number, number: number): Uint8Array => Buffer.concat([varint(field << 3), varint(number)]);

function float(field: number, number: number): Uint8Array {
  return Buffer.concat([varint((field << 3) | 5), new Uint8Array(Float32Array.of(number).buffer)]);
}

function bytes(field: number, ...content: readonly Uint8Array[]): Uint8Array {
  return Buffer.concat([
    varint((field << 3) | 2),
    varint(content.reduce((sum, part) => sum + part.length, 0)),
    ...content,
  ]);
}

const text = (field: number, content: string): Uint8Array => bytes(field, new TextEncoder().encode(content));
