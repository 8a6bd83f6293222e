// madeDecoder: a small decoder as exporters write it, with random weights: embeddings, layers of norm, attention with a past and a
// gated product, a head. Its options are the forms in which real exports differ.

import { elements, makeNode, makeValue, type NewNode, type OnnxNode, type OnnxValue } from '#internal/onnx/graph.js';
import { bytesField, integerField, joinBytes, textField } from '#internal/onnx/protobuf.js';

import { Random } from '#internal/base/random.js';

import { addAttention, addShared, type UnfusedForm } from './made-attention.js';

export interface DecoderForm {
  readonly layers?: number;
  readonly hidden?: number;
  /** Between the two products after attention. Default: twice `hidden`. */
  readonly intermediate?: number;
  readonly heads?: number;
  readonly kvHeads?: number;
  readonly dim?: number;
  readonly vocabulary?: number;
  readonly positions?: number;
  /** Default: GroupQueryAttention. */
  readonly attention?: 'grouped' | 'multi-head' | UnfusedForm;
  readonly isPacked?: boolean;
  /** Where tokens are turned by their positions. Default: in attention; of MultiHeadAttention: in nodes of their own. */
  readonly rotary?: 'inside' | 'outside' | 'neighbours';
  /** Attributes of every attention node. */
  readonly floats?: Readonly<Record<string, number>>;
  readonly integers?: Readonly<Record<string, number>>;
  /** By layer: `local_window_size`; 0: all tokens. */
  readonly windows?: readonly number[];
  readonly hasSinks?: boolean;
  /** What is added to the scores: the causal mask with that of padding; the same of a window; distances, which are no mask. */
  readonly mask?: 'causal' | 'windowed' | 'distances';
  readonly maskWindow?: number;
  /** True where a token is seen. */
  readonly isMaskBoolean?: boolean;
  readonly isHalf?: boolean;
  readonly isQuantized?: boolean;
  /** Of MatMulNBits: 4 rounds activations to 8 bits. */
  readonly accuracyLevel?: number;
  /** Logits become cap · tanh(logits / cap), as Gemma's. */
  readonly logitCap?: number;
  readonly keepsLogits?: boolean;
  /** Nodes and inputs to add, for what is to be refused. */
  readonly more?: { readonly nodes?: readonly NewNode[]; readonly inputs?: readonly OnnxValue[]; readonly outputs?: readonly OnnxValue[] };
}

export interface MadeDecoder {
  readonly bytes: Uint8Array;
  readonly form: Required<Pick<DecoderForm, 'layers' | 'heads' | 'kvHeads' | 'dim' | 'vocabulary' | 'isHalf'>>;
  readonly inputs: readonly string[];
}

export function madeDecoder(given: DecoderForm = {}, seed = 1): MadeDecoder {
  const {
    layers = 2, hidden = 64, intermediate = 2 * hidden, heads = 4, kvHeads = given.attention === 'multi-head' ? 4 : 2, dim = 16, vocabulary = 96, positions = 512,
    attention = 'grouped', isPacked = false, rotary = attention === 'grouped' ? 'inside' : 'outside', floats = {}, integers = {}, windows = [], hasSinks = false,
    mask, maskWindow = 8, isMaskBoolean = false, isHalf = false, isQuantized = false, accuracyLevel = 0, logitCap, keepsLogits = false, more = {},
  } = given;
  const random = new Random(seed);
  const next = (): number => random.next();
  const type = isHalf ? elements.float16 : elements.float32;
  const nodes: OnnxNode[] = [];
  const tensors: Uint8Array[] = [];
  const inputs: OnnxValue[] = [makeValue('input_ids', elements.int64, ['batch', 'sequence'])];
  const outputs: OnnxValue[] = [makeValue('logits', type, ['batch', 'sequence', vocabulary])];
  const add = (operator: string, from: readonly string[], to: string | readonly string[], rest: Partial<NewNode> = {}): string => {
    const made = typeof to === 'string' ? [to] : to;
    nodes.push(makeNode({ name: made[0]!, operator, inputs: from, outputs: made, ...rest }));
    return made[0]!;
  };
  const tensor = (name: string, kind: number, dims: readonly number[], raw: ArrayBufferView): string => {
    const bytes = new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength);
    tensors.push(joinBytes([...dims.map((length) => integerField(1, length)), integerField(2, kind), textField(8, name), bytesField(9, bytes)]));
    return name;
  };
  const floatsOf = (name: string, dims: readonly number[], values: Float32Array): string =>
    isHalf ? add('Cast', [tensor(`${name}.f`, elements.float32, dims, values)], name, { integers: { to: type } }) : tensor(name, type, dims, values);
  const weights = (name: string, dims: readonly number[], scale: number): string =>
    floatsOf(name, dims, Float32Array.from({ length: dims.reduce((a, b) => a * b, 1) }, () => (next() - 0.5) * scale));
  const ints = (name: string, dims: readonly number[], values: readonly number[]): string =>
    tensor(name, elements.int64, dims, BigInt64Array.from(values, BigInt));
  const product = (from: string, name: string, [k, n]: readonly [number, number], to: string): string => {
    if (!isQuantized) return add('MatMul', [from, weights(name, [k, n], 2 / Math.sqrt(k))], to);
    tensor(name, elements.uint8, [n, k / 32, 16], Uint8Array.from({ length: n * k / 2 }, () => Math.floor(next() * 256)));
    tensor(`${name}.scales`, elements.float32, [n * k / 32], new Float32Array(n * k / 32).fill(0.2 / Math.sqrt(k)));
    return add('MatMulNBits', [from, name, `${name}.scales`], to, { domain: 'com.microsoft', integers: { K: k, N: n, bits: 4, block_size: 32, accuracy_level: accuracyLevel } });
  };
  const norm = (from: string, name: string, to: string): string =>
    add('SimplifiedLayerNormalization', [from, floatsOf(name, [hidden], new Float32Array(hidden).fill(1))], to, { floats: { epsilon: 1e-5 }, integers: { axis: -1, stash_type: 1 } });

  const unfused = typeof attention === 'string' ? undefined : attention;
  const maker = { add, ints, floats: floatsOf, type };
  if (unfused !== undefined) addShared(maker, { heads, kvHeads, dim });
  const turns = new Float32Array(positions * dim / 2);
  const half = turns.map((_, at) => Math.floor(at / (dim / 2)) / 100 ** (2 * (at % (dim / 2)) / dim));
  floatsOf('cos', [positions, dim / 2], half.map(Math.cos));
  floatsOf('sin', [positions, dim / 2], half.map(Math.sin));
  if (rotary === 'outside' || mask === 'distances') inputs.push(makeValue('position_ids', elements.int64, ['batch', 'sequence']));
  inputs.push(makeValue('attention_mask', elements.int64, ['batch', 'total']));
  ints('axis1', [1], [1]);
  ints('one', [], [1]);
  if (attention === 'grouped') {
    add('ReduceSum', ['attention_mask', 'axis1'], 'sum', { integers: { keepdims: 0 } });
    add('Cast', [add('Sub', ['sum', 'one'], 'sum1')], 'seqlens_k', { integers: { to: elements.int32 } });
    add('Cast', [add('Gather', [add('Shape', ['attention_mask'], 'mask_shape'), 'one'], 'total64', { integers: { axis: 0 } })], 'total_length', { integers: { to: elements.int32 } });
  }
  add('Gather', [weights('embeddings', [vocabulary, hidden], 2), 'input_ids'], 'hidden_0', { integers: { axis: 0 } });
  if (mask !== undefined) { // [1, 1, sequence, total]: token `past + row` sees those up to itself that are no padding
    ints('zero', [], [0]);
    ints('axis0', [1], [0]);
    ints('axes', [2], [0, 1]);
    add('Gather', [add('Shape', ['attention_mask'], 'mask_shape2'), 'one'], 'total2', { integers: { axis: 0 } });
    add('Gather', [add('Shape', [unfused === undefined ? 'input_ids' : 'hidden_0'], 'ids_shape'), 'one'], 'new', { integers: { axis: 0 } });
    add('Range', [add('Sub', ['total2', 'new'], 'past'), 'total2', 'one'], 'rows1');
    add('Unsqueeze', ['rows1', 'axis1'], 'rows');
    add('Unsqueeze', [add('Range', ['zero', 'total2', 'one'], 'columns1'), 'axis0'], 'columns');
    add('LessOrEqual', ['columns', 'rows'], 'seen1');
    if (mask === 'windowed') {
      ints('window', [], [maskWindow]);
      add('Greater', ['columns', add('Sub', ['rows', 'window'], 'rows_before')], 'seen2');
      add('And', ['seen1', 'seen2'], 'seen');
    } else add('Identity', ['seen1'], 'seen');
    if (isMaskBoolean) add('Unsqueeze', ['seen', 'axes'], 'mask');
    floatsOf('nothing', [], Float32Array.of(0));
    floatsOf('hidden_score', [], Float32Array.of(isHalf ? -65504 : -3.4e38));
    add('Where', ['seen', 'nothing', 'hidden_score'], 'mask2');
    if (mask === 'distances') {
      add('Cast', [add('Sub', ['columns', 'rows'], 'apart')], 'apart_float', { integers: { to: type } });
      add('Unsqueeze', [add('Add', ['mask2', 'apart_float'], 'mask3'), 'axes'], 'mask');
    } else if (!isMaskBoolean) add('Unsqueeze', ['mask2', 'axes'], 'mask');
  }
  if (keepsLogits) inputs.push(makeValue('num_logits_to_keep', elements.int64, []));

  for (let layer = 0; layer < layers; layer += 1) {
    const at = (name: string): string => `layer_${layer}.${name}`;
    const past = ['key', 'value'].map((kind) => `past_key_values.${layer}.${kind}`);
    const present = ['key', 'value'].map((kind) => `present.${layer}.${kind}`);
    for (const name of past) inputs.push(makeValue(name, type, ['batch_size', kvHeads, 'past', dim]));
    for (const name of present) outputs.push(makeValue(name, type, ['batch', kvHeads, 'total', dim]));
    const x = norm(`hidden_${layer}`, at('norm1'), at('x'));
    let q: string;
    let k = '';
    let v = '';
    if (isPacked) q = product(x, at('wqkv'), [hidden, (heads + 2 * kvHeads) * dim], at('qkv'));
    else {
      q = product(x, at('wq'), [hidden, heads * dim], at('q'));
      k = product(x, at('wk'), [hidden, kvHeads * dim], at('k'));
      v = product(x, at('wv'), [hidden, kvHeads * dim], at('v'));
      if (rotary === 'outside' && unfused === undefined) {
        const turn = (from: string, count: number): string => add('RotaryEmbedding', [from, 'position_ids', 'cos', 'sin'], `${from}.turned`, { domain: 'com.microsoft', integers: { num_heads: count } });
        q = turn(q, heads);
        k = turn(k, kvHeads);
      }
    }
    if (unfused !== undefined) {
      addAttention(maker, { heads, kvHeads, dim, form: unfused, at, rows: [q, k, v], past, present, mask: mask === undefined ? '' : 'mask' });
    } else if (attention === 'grouped') {
      const isInside = rotary !== 'outside';
      const from = [q, k, v, ...past, 'seqlens_k', 'total_length', isInside ? 'cos' : '', isInside ? 'sin' : '', '', mask === undefined ? '' : 'mask',
        hasSinks ? weights(at('sinks'), [heads], 4) : ''];
      while (from.at(-1) === '') from.pop();
      add('GroupQueryAttention', from, [at('attended'), ...present], {
        domain: 'com.microsoft', floats,
        integers: { num_heads: heads, kv_num_heads: kvHeads, do_rotary: isInside ? 1 : 0, rotary_interleaved: rotary === 'neighbours' ? 1 : 0, local_window_size: windows[layer] || -1, ...integers },
      });
    } else {
      add('MultiHeadAttention', [q, k, v, '', '', mask === undefined ? '' : 'mask', ...past], [at('attended'), ...present], {
        domain: 'com.microsoft', floats, integers: { num_heads: heads, ...mask === undefined ? { unidirectional: 1 } : {}, ...integers },
      });
    }
    const h = add('Add', [`hidden_${layer}`, product(at('attended'), at('wo'), [heads * dim, hidden], at('o'))], at('h'));
    const y = norm(h, at('norm2'), at('y'));
    const gate = product(y, at('wg'), [hidden, intermediate], at('g'));
    const gated = add('Mul', [add('Mul', [gate, add('Sigmoid', [gate], at('s'))], at('gs')), product(y, at('wu'), [hidden, intermediate], at('u'))], at('m'));
    add('Add', [h, product(gated, at('wd'), [intermediate, hidden], at('d'))], `hidden_${layer + 1}`);
  }
  let last = norm(`hidden_${layers}`, 'last_norm', 'last');
  if (keepsLogits) { // the last so many tokens; 0: all
    ints('end', [1], [2 ** 31]);
    ints('axis1_list', [1], [1]);
    ints('one_dim', [1], [1]);
    add('Reshape', [add('Neg', ['num_logits_to_keep'], 'negative'), 'one_dim'], 'start');
    last = add('Slice', [last, 'start', 'end', 'axis1_list'], 'kept');
  }
  if (logitCap === undefined) product(last, 'head', [hidden, vocabulary], 'logits');
  else {
    floatsOf('cap', [], Float32Array.of(logitCap));
    add('Mul', [add('Tanh', [add('Div', [product(last, 'head', [hidden, vocabulary], 'logits1'), 'cap'], 'logits2')], 'logits3'), 'cap'], 'logits');
  }
  nodes.push(...(more.nodes ?? []).map(makeNode));
  inputs.push(...more.inputs ?? []);
  outputs.push(...more.outputs ?? []);
  const graph = [
    ...nodes.map(({ raw }) => bytesField(1, raw)), textField(2, 'decoder'), ...tensors.map((message) => bytesField(5, message)),
    ...inputs.map(({ raw }) => bytesField(11, raw)), ...outputs.map(({ raw }) => bytesField(12, raw)),
  ];
  const operators = [['', unfused === undefined || unfused.kind === 'softmax' ? 17 : 23], ['com.microsoft', 1]] as const;
  return {
    bytes: joinBytes([
      integerField(1, 8), ...operators.map(([domain, version]) => bytesField(8, textField(1, domain), integerField(2, version))), bytesField(7, ...graph),
    ]),
    form: { layers, heads, kvHeads, dim, vocabulary, isHalf }, inputs: inputs.map(({ name }) => name),
  };
}
