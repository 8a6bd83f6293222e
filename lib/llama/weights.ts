// LlamaWeights: the weights of a model by their part in it, as they are in the file, or as int8; norms and biases, which are small, as
// floats. On a device, addresses there replace the arrays and the addresses of mapped files. A tensor that is missing, or that no part of
// the arithmetic uses, is an error that names it. Of int8 weights, each 32 neighbours of a row have a common 16-bit scale, the largest of
// them ±127: about half the bytes of 16-bit weights, of which decoding reads each once a step.

import { native } from '../device/native.js';
import { int8Block, weightBytes } from '../kernels/dense/dense-operands.js';
import type { DenseKernels, FloatBuffer, HeadPairs, RowDtype, Weight } from '../index.js';

import type { LlamaConfig } from './config.js';
import { modelError } from './model-error.js';
import type { ModelTensors } from './model-files.js';
import { sharedFloats } from '../base/typed-arrays.js';
import type { WeightFile } from './weight-file.js';

/** A product of a layer. */
export interface Linear {
  readonly weight: Weight;
  readonly bias: FloatBuffer | undefined;
}

export interface LayerWeights {
  readonly attentionNorm: FloatBuffer;
  readonly query: Linear;
  readonly key: Linear;
  readonly value: Linear;
  /** Norms of each head of queries and of keys; undefined where they are not normalized. */
  readonly queryNorm: FloatBuffer | undefined;
  readonly keyNorm: FloatBuffer | undefined;
  readonly attentionOutput: Linear;
  readonly feedForwardNorm: FloatBuffer;
  readonly gate: Linear;
  readonly up: Linear;
  readonly down: Linear;
  /** Norms of what attention and the feed-forward part give; undefined where it is added as it is. */
  readonly attentionOutputNorm: FloatBuffer | undefined;
  readonly feedForwardOutputNorm: FloatBuffer | undefined;
  /** A score of each query head that takes weight from the tokens; undefined: there is none. */
  readonly sinks: FloatBuffer | undefined;
}

export interface LlamaWeights {
  readonly embedding: Weight;
  readonly layers: readonly LayerWeights[];
  readonly norm: FloatBuffer;
  readonly head: Weight;
  /** Bytes that one token's forward pass reads: all but the embedding's other rows. */
  readonly bytesPerToken: number;
  /** In which K and V are kept by default. */
  readonly dtype: RowDtype;
  /** How heads of queries and keys come out of their products, before they are rotated. */
  readonly pairs: HeadPairs;
  /** Whose bytes matrices may be; they stay while this does. Checked behind what was computed with them. */
  readonly files: readonly WeightFile[];
}

/** Reads all weights; matrices become what `matrix` makes of them. Throws KV_MODEL_INVALID. */
export function readLlamaWeights(
  tensors: ModelTensors, config: LlamaConfig, dense: DenseKernels, matrix: (name: string, weight: Weight) => Weight,
): LlamaWeights {
  const { hidden, intermediate, headDim, vocabularyTokens, biases } = config;
  const used = new Set<string>();
  const read = (name: string, shape: readonly number[]): Weight => {
    used.add(name);
    return tensors.read(name, shape);
  };
  const vector = (name: string, length: number): Float32Array => {
    const stored = read(name, [length]);
    const floats = sharedFloats(length);
    dense.gather(stored, Int32Array.of(0), 1, floats);
    return floats;
  };
  const norm = (name: string, length: number): Float32Array => {
    const floats = vector(`${name}.weight`, length);
    for (let index = 0; index < length; index += 1) floats[index]! += tensors.normShift;
    return floats;
  };
  const linear = (name: string, outputs: number, inputs: number, hasBias: boolean): Linear => ({
    weight: matrixOf(`${name}.weight`, [outputs, inputs]), bias: hasBias ? vector(`${name}.bias`, outputs) : undefined,
  });

  const [queries, keys] = [config.queryHeads * headDim, config.kvHeads * headDim];
  const ones = sharedFloats(headDim).fill(1);
  const matrixOf = (name: string, shape: readonly number[]): Weight => matrix(name, read(name, shape));
  const embedding = matrixOf('model.embed_tokens.weight', [vocabularyTokens, hidden]);
  const layers = Array.from({ length: config.layers }, (_, layer): LayerWeights => {
    const at = `model.layers.${layer}`;
    const [attention, feedForward] = [`${at}.self_attn`, `${at}.mlp`];
    const isRotated = config.layerAttention?.[layer]?.rope !== 'none';
    const headNorm = (name: string): Float32Array | undefined =>
      config.normalizesHeads ? norm(`${attention}.${name}`, headDim) : config.hasPlainHeadNorms === true && isRotated ? ones : undefined;
    const outputNorm = (name: string): Float32Array | undefined => config.hasOutputNorms === true ? norm(`${at}.${name}`, hidden) : undefined;
    return {
      attentionNorm: norm(`${at}.input_layernorm`, hidden),
      query: linear(`${attention}.q_proj`, queries, hidden, biases.qkv),
      key: linear(`${attention}.k_proj`, keys, hidden, biases.qkv),
      value: linear(`${attention}.v_proj`, keys, hidden, biases.qkv),
      queryNorm: headNorm('q_norm'), keyNorm: headNorm('k_norm'),
      attentionOutput: linear(`${attention}.o_proj`, hidden, queries, biases.attentionOutput),
      feedForwardNorm: norm(`${at}.${config.hasOutputNorms === true ? 'pre_feedforward_layernorm' : 'post_attention_layernorm'}`, hidden),
      gate: linear(`${feedForward}.gate_proj`, intermediate, hidden, biases.feedForward),
      up: linear(`${feedForward}.up_proj`, intermediate, hidden, biases.feedForward),
      down: linear(`${feedForward}.down_proj`, hidden, intermediate, biases.feedForward),
      attentionOutputNorm: outputNorm('post_attention_layernorm'), feedForwardOutputNorm: outputNorm('post_feedforward_layernorm'),
      sinks: config.hasSinks === true ? vector(`${attention}.sinks`, config.queryHeads) : undefined,
    };
  });
  const lastNorm = norm('model.norm', hidden);
  if (!config.tiesHead && !tensors.names.includes('lm_head.weight')) {
    throw modelError('The model has no tensor `lm_head.weight`. If its head is the embedding, `tie_word_embeddings` in config.json must be true.');
  }
  const head = config.tiesHead ? embedding : matrixOf('lm_head.weight', [vocabularyTokens, hidden]);

  // Old files carry the rotary frequencies, and tied ones the head a second time; neither is needed.
  const unused = tensors.names.find((name) => !used.has(name) && !name.endsWith('.rotary_emb.inv_freq') && name !== 'lm_head.weight');
  if (unused !== undefined) {
    throw modelError(`The model has a tensor \`${unused}\` that this engine has no use for, so its results would be wrong. ` +
      'Give a plain model of the type that its config says, adapters merged into its weights.');
  }
  const matrices = [head, ...layers.flatMap(({ query, key, value, attentionOutput, gate, up, down }) =>
    [query, key, value, attentionOutput, gate, up, down].map(({ weight }) => weight))];
  const bytesPerToken = matrices.reduce((sum, weight) => sum + weightBytes(weight), 0);
  // A matrix that was converted is in no file.
  const files = [embedding, ...matrices].some(({ data }) => typeof data === 'bigint') ? tensors.files : [];
  return { embedding, layers, norm: lastNorm, head, bytesPerToken, dtype: tensors.dtype, pairs: tensors.pairs, files };
}

/** The same weights with every array, or address of so many bytes, replaced by `map`'s result: for a device, by an address there. */
export function mapWeights(weights: LlamaWeights, map: (data: Weight['data'], bytes: number) => Weight['data']): LlamaWeights {
  const matrix = (weight: Weight): Weight => ({ ...weight, data: map(weight.data, weightBytes(weight)) });
  const floats = (buffer: FloatBuffer): FloatBuffer => typeof buffer === 'bigint' ? buffer : map(buffer, buffer.byteLength) as FloatBuffer;
  const linear = ({ weight, bias }: Linear): Linear => ({ weight: matrix(weight), bias: bias && floats(bias) });
  return {
    embedding: matrix(weights.embedding), norm: floats(weights.norm), head: matrix(weights.head), bytesPerToken: weights.bytesPerToken, dtype: weights.dtype, pairs: weights.pairs, files: weights.files,
    layers: weights.layers.map((layer) => ({
      attentionNorm: floats(layer.attentionNorm), query: linear(layer.query), key: linear(layer.key), value: linear(layer.value),
      queryNorm: layer.queryNorm && floats(layer.queryNorm), keyNorm: layer.keyNorm && floats(layer.keyNorm),
      attentionOutput: linear(layer.attentionOutput), feedForwardNorm: floats(layer.feedForwardNorm), gate: linear(layer.gate),
      up: linear(layer.up), down: linear(layer.down),
      attentionOutputNorm: layer.attentionOutputNorm && floats(layer.attentionOutputNorm),
      feedForwardOutputNorm: layer.feedForwardOutputNorm && floats(layer.feedForwardOutputNorm),
      sinks: layer.sinks && floats(layer.sinks),
    })),
  };
}

/** Rows that are converted at a time. */
const rowsAtOnce = 64;

/** Bytes of a row in int8. Throws KV_MODEL_INVALID when it has no whole blocks. */
export function int8RowBytes(name: string, inputs: number): number {
  if (inputs % int8Block.elements === 0) return weightBytes({ dtype: 'int8', outputs: 1, inputs });
  throw modelError(`Tensor \`${name}\` has rows of ${inputs} elements, and int8 weights are made of ${int8Block.elements} at a time. Use the model with its weights as they are.`);
}

/** The same matrix in int8. Throws KV_MODEL_INVALID when it cannot be: rows of no whole blocks, or elements that are no finite numbers. */
export function quantized(name: string, weight: Weight, dense: DenseKernels): Weight {
  const { outputs, inputs } = weight;
  const rowBytes = int8RowBytes(name, inputs);
  const data = new Uint8Array(new SharedArrayBuffer(rowBytes * outputs)); // commands read it that run later: it must not be detached
  const floats = new Float32Array(rowsAtOnce * inputs);
  for (let from = 0; from < outputs; from += rowsAtOnce) {
    const rows = Math.min(rowsAtOnce, outputs - from);
    quantizeRows(name, weight, Int32Array.from({ length: rows }, (_, row) => from + row), dense, floats, data.subarray(from * rowBytes, (from + rows) * rowBytes));
  }
  return { dtype: 'int8', outputs, inputs, data };
}

/** Writes some rows of a matrix as int8, one behind the other; `floats` has room for them. Throws KV_MODEL_INVALID when an element is no finite number. */
export function quantizeRows(name: string, weight: Weight, rows: Int32Array, dense: DenseKernels, floats: Float32Array, into: Uint8Array): void {
  dense.gather(weight, rows, rows.length, floats);
  if (native().quantizeRows(floats, into)) return;
  throw modelError(`Tensor \`${name}\` has elements in rows ${Math.min(...rows)} to ${Math.max(...rows)} that are not finite, or too large for int8. Is the download complete?`);
}
