// The numbers of a GGUF file's header that the engine needs: Llama and Mistral (`llama`), Qwen2, Qwen3, Gemma 2 and 3. A key that would change the
// arithmetic and is not supported is an error that names it, never ignored. Rotary frequencies that a file stretches by a tensor, one float for each pair of a head, are
// what Llama 3's scaling comes to.

import { gemmaConfig, layerConfig, type LlamaConfig, type RopeScaling } from '../config.js';
import { families, type Family } from '../families.js';
import { modelError } from '../model-error.js';
import type { GgufFile, GgufValue } from './gguf-file.js';
import { configIn } from './own-entries.js';

/** By what a file calls them; of two families with one name the first. */
const architectures = new Map<unknown, Family>();
for (const family of Object.values(families)) {
  if (family.architecture !== undefined && !architectures.has(family.architecture)) architectures.set(family.architecture, family);
}

/** Keys of an architecture that change nothing in the arithmetic, and those that are read below. */
const known = new Set([
  'block_count', 'embedding_length', 'feed_forward_length', 'context_length', 'vocab_size', 'attention.head_count', 'attention.head_count_kv',
  'attention.key_length', 'attention.value_length', 'attention.layer_norm_rms_epsilon', 'rope.freq_base', 'rope.dimension_count',
  'rope.scaling.type', 'rope.scaling.factor', 'rope.scaling.original_context_length', 'rope.scaling.finetuned',
]);
/** The same of a Gemma. */
const knownOfGemma = new Set([
  'attention.sliding_window', 'attention.sliding_window_pattern', 'attn_logit_softcapping', 'final_logit_softcapping', 'rope.freq_base_swa',
]);
/** Layers of the models whose queries are scaled by the width of a token and not by that of a head: 27B. */
const layersOfWidest: Readonly<Record<string, number>> = { gemma2: 46, gemma3: 62 };
/** Keys that change nothing when they have this value. */
const neutral: Readonly<Record<string, GgufValue>> = {
  expert_count: 0, expert_used_count: 0, 'attention.sliding_window': 0, 'attention.causal': true, 'rope.scale_linear': 1,
};

/** The config that the header says. Throws KV_MODEL_INVALID. */
export function readGgufConfig(gguf: GgufFile): LlamaConfig {
  const { file: { path }, values, tensors } = gguf;
  const refuse = (what: string, hint: string): never => {
    throw modelError(`${path}: ${what} is not supported. ${hint}`);
  };
  const architecture = values.get('general.architecture');
  const family = architectures.get(architecture);
  if (family === undefined) return refuse(`the architecture ${JSON.stringify(architecture)}`, `This engine runs ${[...architectures.keys()].join(', ')}.`);
  const parts = values.get('split.count');
  if (typeof parts === 'number' && parts > 1) refuse(`a model in ${parts} files`, 'Merge them with llama-gguf-split first.');
  for (const [key, value] of values) {
    const name = key.startsWith(`${family.architecture}.`) ? key.slice(family.architecture!.length + 1) : undefined;
    if (name === undefined || known.has(name) || (family.isGemma && knownOfGemma.has(name))) continue;
    if (neutral[name] !== value) refuse(`${key} ${JSON.stringify(value)}`, 'Its results would be wrong without it.');
  }

  const own = configIn(values, path);
  if (own !== undefined) return own;
  const number = (name: string, fallback?: number, isRight = Number.isSafeInteger): number => {
    const value = values.get(`${family.architecture}.${name}`) ?? fallback;
    if (typeof value === 'number' && isRight(value) && value > 0) return value;
    const found = value === undefined ? 'missing' : JSON.stringify(value);
    throw modelError(`${path}: \`${family.architecture}.${name}\` is ${found}, but must be one number above 0.`);
  };
  const [hidden, queryHeads] = [number('embedding_length'), number('attention.head_count')];
  const kvHeads = number('attention.head_count_kv', queryHeads);
  if (queryHeads % kvHeads !== 0) refuse(`${queryHeads} query heads over ${kvHeads} KV heads`, 'They must divide.');
  const headDim = number('attention.key_length', hidden / queryHeads);
  if (headDim % 2 !== 0) refuse(`a head dim of ${headDim}`, 'Rotary positions need an even one.');
  if (number('attention.value_length', headDim) !== headDim) refuse('a value as long as no key', 'Both have the same length here.');
  if (number('rope.dimension_count', headDim) !== headDim) refuse('a head of which a part is rotated', 'All of a head is rotated.');
  const has = (name: string): boolean => tensors.has(`blk.0.${name}`);
  return {
    layers: number('block_count'), hidden, intermediate: number('feed_forward_length'), queryHeads, kvHeads, headDim,
    vocabularyTokens: tensors.get('token_embd.weight')?.shape[0] ?? number('vocab_size'), maxTokens: number('context_length'),
    normEpsilon: number('attention.layer_norm_rms_epsilon', undefined, Number.isFinite),
    ropeTheta: number('rope.freq_base', 10_000, Number.isFinite), ropeScaling: readScaling(),
    tiesHead: !tensors.has('output.weight'),
    biases: { qkv: has('attn_q.bias'), attentionOutput: has('attn_output.bias'), feedForward: has('ffn_gate.bias') },
    normalizesHeads: has('attn_q_norm.weight'), endTokens: endTokensOf(values), ...family.isGemma ? readGemma(family) : {},
  };

  function readGemma({ architecture, layerType }: Family): Partial<LlamaConfig> {
    const layers = number('block_count');
    const optional = (name: string): number | undefined => values.has(`${architecture}.${name}`) ? number(name, undefined, Number.isFinite) : undefined;
    const isOld = architecture === 'gemma2';
    const tokens = optional('attention.sliding_window') ?? (isOld ? 4096 : undefined);
    const every = isOld ? undefined : number('attention.sliding_window_pattern', 6);
    const layerAttention = Array.from({ length: layers }, (_, layer) => {
      if (tokens === undefined || layerType({ sliding_window_pattern: every }, layer) === 'full_attention') return { kind: 'full', tokens: 0, rope: 'global' } as const;
      return { kind: 'window', tokens, rope: isOld ? 'global' : 'local' } as const;
    });
    return {
      ...gemmaConfig({
        hidden, queryDim: layersOfWidest[architecture!] === layers ? hidden / queryHeads : headDim,
        attentionCap: isOld ? optional('attn_logit_softcapping') ?? 50 : undefined,
        logitsCap: optional('final_logit_softcapping') ?? (isOld ? 30 : undefined),
      }),
      ...layerConfig(layerAttention, isOld ? undefined : number('rope.freq_base_swa', 10_000, Number.isFinite)),
    };
  }

  function readScaling(): RopeScaling {
    const kind = values.get(`${family!.architecture}.rope.scaling.type`) ?? 'none';
    const factors = readRotaryFactors(gguf, headDim);
    if (kind === 'linear' && factors === undefined) return { kind, factor: number('rope.scaling.factor', undefined, Number.isFinite) };
    if (kind !== 'none') return refuse(`rope scaling of type ${JSON.stringify(kind)}`, 'Only none, linear and the factors of Llama 3 (rope_freqs) are.');
    return factors ?? { kind: 'none' };
  }
}

/** Tokens that end a text or a turn. */
function endTokensOf(values: ReadonlyMap<string, GgufValue>): number[] {
  const tokens = ['eos', 'eot', 'eom'].map((name) => values.get(`tokenizer.ggml.${name}_token_id`));
  return [...new Set(tokens.filter((token): token is number => Number.isSafeInteger(token)))];
}

/** Name of the tensor with the factors of rotary frequencies. */
export const rotaryFactors = 'rope_freqs.weight';

/** The scaling that a file's tensor says, of heads of `headDim`; undefined where it has none. Throws KV_MODEL_INVALID. */
function readRotaryFactors({ file, tensors }: GgufFile, headDim: number): RopeScaling | undefined {
  const tensor = tensors.get(rotaryFactors);
  if (tensor === undefined) return undefined;
  const bytes = Buffer.alloc(tensor.bytes);
  file.read(bytes, tensor.offset, `tensor \`${tensor.name}\``);
  const factors = Array.from({ length: tensor.bytes / 4 }, (_, pair) => bytes.readFloatLE(4 * pair));
  if (tensor.type.dtype !== 'float32' || tensor.shape.join() !== `${headDim / 2}` || !factors.every((factor) => Number.isFinite(factor) && factor > 0)) {
    throw modelError(`${file.path}: tensor \`${tensor.name}\` is ${tensor.type.name} [${tensor.shape.join(', ')}], but must be ${headDim / 2} positive F32.`);
  }
  return { kind: 'factors', factors };
}
