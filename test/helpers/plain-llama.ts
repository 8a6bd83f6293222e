// PlainLlama: the same model without any cache, in the most obvious way and in double precision: a whole text at a time, every
// position from nothing. It shares no code with the engine, not even the reading of the config. What tells the families of models
// apart is said once for each: which tokens a layer sees, how it rotates, its norms, its gate.

import type { Json, MadeLlama } from './made-llama.js';

type Vector = Float64Array;

/** Tokens of a text from `to` on see only some of those in [from, to). */
export interface PlainSelection {
  readonly from: number;
  readonly to: number;
  /** Which of them, by the rotated queries and keys of all tokens of a layer. */
  choose(layer: number, queries: readonly Vector[], keys: readonly Vector[]): ReadonlySet<number>;
}

/** Whether the token at a position sees another before it, or itself. */
type Sight = (position: number, token: number) => boolean;

const all: Sight = () => true;

export class PlainLlama {
  readonly #config: Json;
  readonly #tensors: ReadonlyMap<string, Vector>;
  readonly #round: (input: Vector) => Vector;

  /** `round`: what products make of their inputs first. */
  constructor({ config, tensors }: MadeLlama, round: (input: Vector) => Vector = (input) => input) {
    this.#config = config;
    this.#round = round;
    this.#tensors = new Map([...tensors].map(([name, { values }]) => [name, Float64Array.from(values)]));
  }

  /** Logits behind each token of a text. */
  logits(text: ArrayLike<number>, selection?: PlainSelection): Vector[] {
    const [hiddenSize, layers] = [this.#number('hidden_size'), this.#number('num_hidden_layers')];
    const embedding = this.#tensors.get('model.embed_tokens.weight')!;
    const factor = this.#isGemma ? Math.sqrt(hiddenSize) : 1;
    const rows = Array.from(text, (token) => embedding.slice(token * hiddenSize, (token + 1) * hiddenSize).map((value) => factor * value));
    for (let layer = 0; layer < layers; layer += 1) this.#layer(layer, rows, selection);
    const head = this.#config['tie_word_embeddings'] === true ? 'model.embed_tokens' : 'lm_head';
    const cap = capBy(this.#config['final_logit_softcapping']);
    return rows.map((row) => this.#linear(head, this.#norm('model.norm', row)).map(cap));
  }

  get #type(): string {
    return this.#config['model_type'] as string;
  }

  get #isGemma(): boolean {
    return this.#type.startsWith('gemma');
  }

  /** Whether a layer of a family that mixes them sees all of the text. */
  #isFull(layer: number): boolean {
    if (this.#type === 'gemma3_text') return layer % this.#number('sliding_window_pattern') === this.#number('sliding_window_pattern') - 1;
    if (this.#type === 'llama4_text') return layer % 4 === 3;
    return layer % 2 === 1; // Gemma 2, gpt-oss
  }

  #sightOf(layer: number): Sight {
    const window = this.#config['sliding_window'];
    const slides: Sight = (position, token) => token > position - (window as number);
    const types = this.#config['layer_types'] as readonly string[] | undefined;
    if (types !== undefined) return types[layer] === 'sliding_attention' ? slides : all;
    switch (this.#type) {
      case 'mistral': return typeof window === 'number' ? slides : all;
      case 'gemma2': case 'gemma3_text': case 'gpt_oss': return this.#isFull(layer) ? all : slides;
      case 'llama4_text': {
        const chunk = this.#number('attention_chunk_size');
        return this.#isFull(layer) ? all : (position, token) => Math.floor(position / chunk) === Math.floor(token / chunk);
      }
      default: return all;
    }
  }

  /** What becomes of queries and keys before they meet. */
  #place(layer: number, queries: Vector[], keys: Vector[]): void {
    const [heads, kvHeads] = [this.#number('num_attention_heads'), this.#number('num_key_value_heads')];
    const name = `model.layers.${layer}.self_attn`;
    if (this.#type === 'qwen3' || this.#type === 'gemma3_text') {
      for (const row of queries) this.#normHeads(`${name}.q_norm`, row, heads);
      for (const row of keys) this.#normHeads(`${name}.k_norm`, row, kvHeads);
    }
    if (this.#type === 'llama4_text' && this.#isFull(layer)) {
      const [every, scale] = [this.#number('floor_scale'), this.#number('attn_scale')];
      const grows = this.#config['attn_temperature_tuning'] === true;
      queries.forEach((row, position) => {
        const factor = grows ? Math.log(Math.floor((position + 1) / every) + 1) * scale + 1 : 1;
        row.forEach((value, i) => { row[i] = factor * value; });
      });
      return;
    }
    const theta = this.#type === 'gemma3_text' && !this.#isFull(layer) ? this.#number('rope_local_base_freq') : undefined;
    queries.forEach((row, position) => this.#rotate(row, heads, position, theta));
    keys.forEach((row, position) => this.#rotate(row, kvHeads, position, theta));
    if (this.#config['use_qk_norm'] !== true) return;
    for (const row of queries) this.#normHeads(undefined, row, heads); // Llama 4: behind the rotation
    for (const row of keys) this.#normHeads(undefined, row, kvHeads);
  }

  /** Weights of the tokens by their scores, and of what else takes weight. */
  #softmax(scores: readonly number[], sink: number): number[] {
    const largest = Math.max(...scores, sink);
    const weights = scores.map((score) => Math.exp(score - largest));
    const total = weights.reduce((sum, weight) => sum + weight, Math.exp(sink - largest));
    return weights.map((weight) => weight / total);
  }

  #gate(x: number): number {
    if (!this.#isGemma) return x / (1 + Math.exp(-x));
    return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
  }

  #layer(layer: number, rows: Vector[], selection: PlainSelection | undefined): void {
    const name = `model.layers.${layer}`;
    const [heads, kvHeads, dim] = [this.#number('num_attention_heads'), this.#number('num_key_value_heads'), this.#number('head_dim')];
    const inputs = rows.map((row) => this.#norm(`${name}.input_layernorm`, row));
    const project = (part: string): Vector[] => inputs.map((row) => this.#linear(`${name}.self_attn.${part}`, row));
    const [queries, keys, values] = [project('q_proj'), project('k_proj'), project('v_proj')];
    this.#place(layer, queries, keys);
    const chosen = selection?.choose(layer, queries, keys);
    const isInSight = this.#sightOf(layer);
    const sees: Sight = (position, token) => isInSight(position, token) &&
      (selection === undefined || position < selection.to || token < selection.from || token >= selection.to || chosen!.has(token));
    const [cap, sinks] = [capBy(this.#config['attn_logit_softcapping']), this.#tensors.get(`${name}.self_attn.sinks`)];
    const scale = 1 / Math.sqrt((this.#config['query_pre_attn_scalar'] as number | undefined) ?? dim);
    rows.forEach((row, position) => {
      const attended = new Float64Array(heads * dim);
      for (let head = 0; head < heads; head += 1) {
        const kvHead = Math.floor(head / (heads / kvHeads));
        const part = (vectors: Vector[], token: number): Vector => vectors[token]!.subarray(kvHead * dim, (kvHead + 1) * dim);
        const query = queries[position]!.subarray(head * dim, (head + 1) * dim);
        const scores = Array.from({ length: position + 1 }, (_, token) => (sees(position, token) ? cap(dot(query, part(keys, token)) * scale) : -Infinity));
        const weights = this.#softmax(scores, sinks?.[head] ?? -Infinity);
        for (let token = 0; token <= position; token += 1) {
          if (weights[token] === 0) continue;
          const value = part(values, token);
          for (let i = 0; i < dim; i += 1) attended[head * dim + i]! += weights[token]! * value[i]!;
        }
      }
      const given = this.#linear(`${name}.self_attn.o_proj`, attended);
      addTo(row, this.#isGemma ? this.#norm(`${name}.post_attention_layernorm`, given) : given);
    });
    const feedForward = `${name}.${this.#type === 'llama4_text' ? 'feed_forward' : 'mlp'}`;
    for (const row of rows) {
      const input = this.#norm(`${name}.${this.#isGemma ? 'pre_feedforward' : 'post_attention'}_layernorm`, row);
      const [gate, up] = [this.#linear(`${feedForward}.gate_proj`, input), this.#linear(`${feedForward}.up_proj`, input)];
      const given = this.#linear(`${feedForward}.down_proj`, gate.map((x, i) => this.#gate(x) * up[i]!));
      addTo(row, this.#isGemma ? this.#norm(`${name}.post_feedforward_layernorm`, given) : given);
    }
  }

  /** Without a name, without weights. */
  #norm(name: string | undefined, row: Vector): Vector {
    const weight = name === undefined ? undefined : this.#tensors.get(`${name}.weight`)!;
    const size = Math.sqrt(dot(row, row) / row.length + this.#number('rms_norm_eps'));
    return row.map((value, i) => (value / size) * (weight === undefined ? 1 : this.#isGemma ? 1 + weight[i]! : weight[i]!));
  }

  #normHeads(name: string | undefined, row: Vector, heads: number): void {
    const dim = row.length / heads;
    for (let head = 0; head < heads; head += 1) row.set(this.#norm(name, row.slice(head * dim, (head + 1) * dim)), head * dim);
  }

  #linear(name: string, unrounded: Vector): Vector {
    const input = this.#round(unrounded);
    const [weight, bias] = [this.#tensors.get(`${name}.weight`)!, this.#tensors.get(`${name}.bias`)];
    return Float64Array.from({ length: weight.length / input.length }, (_, output) =>
      dot(input, weight.subarray(output * input.length, (output + 1) * input.length)) + (bias?.[output] ?? 0));
  }

  /** `theta`: a base in the place of the config's, whose scaling does not count then. */
  #rotate(row: Vector, heads: number, position: number, theta?: number): void {
    const dim = this.#number('head_dim');
    for (let i = 0; i < dim / 2; i += 1) {
      const angle = position * (theta === undefined ? this.#frequency(i, dim) : 1 / theta ** (2 * i / dim));
      for (let head = 0; head < heads; head += 1) {
        const isPaired = this.#type === 'llama4_text';
        const [low, high] = isPaired ? [head * dim + 2 * i, head * dim + 2 * i + 1] : [head * dim + i, head * dim + i + dim / 2];
        const [a, b] = [row[low]!, row[high]!];
        row[low] = a * Math.cos(angle) - b * Math.sin(angle);
        row[high] = b * Math.cos(angle) + a * Math.sin(angle);
      }
    }
  }

  /** Llama 3.1's scaling as its authors wrote it, by wavelengths. */
  #frequency(i: number, dim: number): number {
    const given = this.#config['rope_parameters'] as Readonly<Record<string, unknown>> | undefined;
    const newer = (given?.['full_attention'] ?? given) as Readonly<Record<string, number>> | undefined;
    const frequency = 1 / (newer?.['rope_theta'] ?? this.#number('rope_theta')) ** (2 * i / dim);
    const scaling = (newer ?? this.#config['rope_scaling']) as Readonly<Record<string, number>> | undefined;
    if (scaling === undefined || (scaling['rope_type'] as unknown) === 'default') return frequency;
    if ((scaling['rope_type'] as unknown) === 'linear') return frequency / scaling['factor']!;
    const [old, low, high] = [scaling['original_max_position_embeddings']!, scaling['low_freq_factor']!, scaling['high_freq_factor']!];
    const wavelength = 2 * Math.PI / frequency;
    if (wavelength < old / high) return frequency;
    if (wavelength > old / low) return frequency / scaling['factor']!;
    const smooth = (old / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / scaling['factor']! + smooth * frequency;
  }

  #number(name: string): number {
    return this.#config[name] as number;
  }
}

/** What a soft cap makes of a number. */
function capBy(cap: unknown): (value: number) => number {
  return typeof cap === 'number' ? (value) => cap * Math.tanh(value / cap) : (value) => value;
}

function dot(a: Vector, b: Vector): number {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i]! * b[i]!;
  return sum;
}

function addTo(to: Vector, from: Vector): void {
  for (let i = 0; i < to.length; i += 1) to[i]! += from[i]!;
}
