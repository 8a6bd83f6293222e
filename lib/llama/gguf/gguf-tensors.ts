// GgufTensors: the tensors of a GGUF file under the names that Hugging Face gives them, as they are in the file. In a Llama's queries and
// keys the two halves of each head are in turns: llama.cpp's converter has put them so.

import { dtypeBytes, type HeadPairs, type RowDtype, type Weight } from '../../index.js';
import { mostNeighbourDim, type WeightDtype } from '../../kernels/dense/dense-operands.js';
import type { LlamaConfig } from '../config.js';
import { inHalves } from '../head-pairs.js';
import { modelError } from '../model-error.js';
import type { WeightFile } from '../weight-file.js';
import type { GgufFile, GgufTensor } from './gguf-file.js';
import { dtypeIn } from './own-entries.js';
import { rotaryFactors } from './gguf-config.js';

/** Of a layer, behind `blk.N.` and `model.layers.N.`. */
const layerNames: Readonly<Record<string, string>> = {
  attn_norm: 'input_layernorm', ffn_norm: 'post_attention_layernorm', attn_q: 'self_attn.q_proj', attn_k: 'self_attn.k_proj', attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj', attn_q_norm: 'self_attn.q_norm', attn_k_norm: 'self_attn.k_norm', ffn_gate: 'mlp.gate_proj', ffn_up: 'mlp.up_proj',
  ffn_down: 'mlp.down_proj',
};
/** Where norms stand behind both parts of a layer, too. */
const layerNamesOfGemma: Readonly<Record<string, string>> = {
  ...layerNames, ffn_norm: 'pre_feedforward_layernorm', post_attention_norm: 'post_attention_layernorm', post_ffw_norm: 'post_feedforward_layernorm',
};
const modelNames: Readonly<Record<string, string>> = { token_embd: 'model.embed_tokens', output_norm: 'model.norm', output: 'lm_head' };

export class GgufTensors {
  /** How queries and keys are read. */
  readonly pairs: HeadPairs;
  readonly normShift = 0;
  readonly #gguf: GgufFile;
  /** Of tensors that are put in halves, by their part of a name, the heads. */
  readonly #heads: ReadonlyMap<string, number>;
  readonly #tensors = new Map<string, GgufTensor>();

  constructor(gguf: GgufFile, config: LlamaConfig) {
    const { queryHeads, kvHeads, headDim, normalizesHeads } = config;
    this.#gguf = gguf;
    const areNeighbours = gguf.values.get('general.architecture') === 'llama';
    const areKept = areNeighbours && !normalizesHeads && headDim <= mostNeighbourDim; // weights of norms are in halves
    this.pairs = areKept ? 'neighbours' : 'halves';
    this.#heads = new Map(areNeighbours && !areKept ? [['q_proj', queryHeads], ['k_proj', kvHeads]] : []);
    for (const [name, tensor] of gguf.tensors) if (name !== rotaryFactors) this.#tensors.set(nameOf(name, config), tensor);
  }

  get names(): readonly string[] {
    return [...this.#tensors.keys()];
  }

  /** In which K and V are kept by default: what the header says, else the embedding's, and float16 of one in integers. */
  get dtype(): RowDtype {
    const dtype = this.#tensors.get('model.embed_tokens.weight')!.type.dtype;
    return dtypeIn(this.#gguf.values, this.#gguf.file.path) ?? (dtype === undefined || dtype === 'int8' ? 'float16' : dtype);
  }

  get files(): readonly WeightFile[] {
    return [this.#gguf.file];
  }

  /** When all tensors were read. Idempotent. */
  close(): void {
    this.#gguf.file.close();
  }

  /** A matrix `[outputs, inputs]`; a vector has one output. Throws KV_MODEL_INVALID when it is missing, or of another shape or a type that nothing computes with. */
  read(name: string, shape: readonly number[]): Weight {
    const { file } = this.#gguf;
    const tensor = this.#tensors.get(name);
    if (tensor === undefined) throw modelError(`${file.path} has no tensor for \`${name}\`, which its header asks for.`);
    const { type: { dtype, name: type }, offset, bytes } = tensor;
    if (tensor.shape.join() !== shape.join()) {
      throw modelError(`${file.path}: tensor \`${tensor.name}\` is [${tensor.shape.join(', ')}], but the header makes it [${shape.join(', ')}].`);
    }
    if (dtype === undefined) {
      throw modelError(`${file.path}: tensor \`${tensor.name}\` is ${type}. F32, F16, BF16 and Q8_0 are computed with; convert the model to one of them, from the one before it was quantized.`);
    }
    const made = { dtype, outputs: shape.length === 2 ? shape[0]! : 1, inputs: shape.at(-1)! };
    const heads = this.#heads.get(name.split('.').at(-2)!);
    return { ...made, data: heads === undefined ? file.tensor(tensor.name, dtype, offset, bytes) : this.#inHalves(tensor, dtype, shape[0]! / heads) };
  }

  /** Its rows, or elements of a vector, in halves. */
  #inHalves(tensor: GgufTensor, dtype: WeightDtype, headDim: number): Weight['data'] {
    const stored = new Uint8Array(tensor.bytes);
    this.#gguf.file.read(stored, tensor.offset, `tensor \`${tensor.name}\``);
    const memory = inHalves(stored, tensor.shape[0]!, headDim);
    if (dtype === 'int8') return new Uint8Array(memory);
    return dtypeBytes(dtype) === 4 ? new Float32Array(memory) : new Uint16Array(memory);
  }
}

const namesFor = ({ hasOutputNorms }: LlamaConfig): Readonly<Record<string, string>> => hasOutputNorms === true ? layerNamesOfGemma : layerNames;

/** The name in a GGUF file of what Hugging Face calls so: one that `nameOf` has an answer for. */
export function ggufNameOf(name: string, config: LlamaConfig): string {
  const [, layer, part, kind] = /^(?:model\.layers\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(name)!;
  const [found] = Object.entries(layer === undefined ? modelNames : namesFor(config)).find(([, own]) => own === part)!;
  return `${layer === undefined ? '' : `blk.${layer}.`}${found}.${kind}`;
}

/** What Hugging Face calls it; an unknown one keeps its name. */
function nameOf(name: string, config: LlamaConfig): string {
  const [, layer, part, kind] = /^(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)$/.exec(name) ?? [];
  const found = part === undefined ? undefined : (layer === undefined ? modelNames : namesFor(config))[part];
  if (found === undefined) return name;
  return layer === undefined ? `${found}.${kind}` : `model.layers.${layer}.${found}.${kind}`;
}
