// PlainLlama: the same model without any cache, in the most obvious way and in double precision: a whole text at a time, every
// position from nothing. It shares no code with the engine, not even the reading of the config.

import type { Json, MadeLlama } from './made-llama.js';

type Vector = Float64Array;

/** Tokens of a text from `to` on see only some of those in [from, to). */
export interface PlainSelection {
  readonly from: number;
  readonly to: number;
  /** Which of them, by the rotated queries and keys of all tokens of a layer. */
  choose(layer: number, queries: readonly Vector[], keys: readonly Vector[]): ReadonlySet<number>;
}

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
    const rows = Array.from(text, (token) => embedding.slice(token * hiddenSize, (token + 1) * hiddenSize));
    for (let layer = 0; layer < layers; layer += 1) this.#layer(layer, rows, selection);
    const head = this.#config['tie_word_embeddings'] === true ? 'model.embed_tokens' : 'lm_head';
    return rows.map((row) => this.#linear(head, this.#norm('model.norm', row)));
  }

  #layer(layer: number, rows: Vector[], selection: PlainSelection | undefined): void {
    const name = `model.layers.${layer}`;
    const [heads, kvHeads, dim] = [this.#number('num_attention_heads'), this.#number('num_key_value_heads'), this.#number('head_dim')];
    const inputs = rows.map((row) => this.#norm(`${name}.input_layernorm`, row));
    const project = (part: string): Vector[] => inputs.map((row) => this.#linear(`${name}.self_attn.${part}`, row));
    const [queries, keys, values] = [project('q_proj'), project('k_proj'), project('v_proj')];
    if (this.#config['model_type'] === 'qwen3') {
      for (const row of queries) this.#normHeads(`${name}.self_attn.q_norm`, row, heads);
      for (const row of keys) this.#normHeads(`${name}.self_attn.k_norm`, row, kvHeads);
    }
    queries.forEach((row, position) => this.#rotate(row, heads, position));
    keys.forEach((row, position) => this.#rotate(row, kvHeads, position));
    const chosen = selection?.choose(layer, queries, keys);
    const sees = (position: number, token: number): boolean =>
      selection === undefined || position < selection.to || token < selection.from || token >= selection.to || chosen!.has(token);
    rows.forEach((row, position) => {
      const attended = new Float64Array(heads * dim);
      for (let head = 0; head < heads; head += 1) {
        const kvHead = Math.floor(head / (heads / kvHeads));
        const part = (vectors: Vector[], token: number): Vector => vectors[token]!.subarray(kvHead * dim, (kvHead + 1) * dim);
        const query = queries[position]!.subarray(head * dim, (head + 1) * dim);
        const scores = Array.from({ length: position + 1 }, (_, token) => (sees(position, token) ? dot(query, part(keys, token)) / Math.sqrt(dim) : -Infinity));
        const largest = Math.max(...scores);
        const weights = scores.map((score) => Math.exp(score - largest));
        const total = weights.reduce((sum, weight) => sum + weight);
        for (let token = 0; token <= position; token += 1) {
          const value = part(values, token);
          for (let i = 0; i < dim; i += 1) attended[head * dim + i]! += (weights[token]! / total) * value[i]!;
        }
      }
      addTo(row, this.#linear(`${name}.self_attn.o_proj`, attended));
    });
    for (const row of rows) {
      const input = this.#norm(`${name}.post_attention_layernorm`, row);
      const [gate, up] = [this.#linear(`${name}.mlp.gate_proj`, input), this.#linear(`${name}.mlp.up_proj`, input)];
      addTo(row, this.#linear(`${name}.mlp.down_proj`, gate.map((x, i) => (x / (1 + Math.exp(-x))) * up[i]!)));
    }
  }

  #norm(name: string, row: Vector): Vector {
    const weight = this.#tensors.get(`${name}.weight`)!;
    const size = Math.sqrt(dot(row, row) / row.length + this.#number('rms_norm_eps'));
    return row.map((value, i) => (value / size) * weight[i]!);
  }

  #normHeads(name: string, row: Vector, heads: number): void {
    const dim = row.length / heads;
    for (let head = 0; head < heads; head += 1) row.set(this.#norm(name, row.slice(head * dim, (head + 1) * dim)), head * dim);
  }

  #linear(name: string, unrounded: Vector): Vector {
    const input = this.#round(unrounded);
    const [weight, bias] = [this.#tensors.get(`${name}.weight`)!, this.#tensors.get(`${name}.bias`)];
    return Float64Array.from({ length: weight.length / input.length }, (_, output) =>
      dot(input, weight.subarray(output * input.length, (output + 1) * input.length)) + (bias?.[output] ?? 0));
  }

  #rotate(row: Vector, heads: number, position: number): void {
    const dim = this.#number('head_dim');
    for (let i = 0; i < dim / 2; i += 1) {
      const angle = position * this.#frequency(i, dim);
      for (let head = 0; head < heads; head += 1) {
        const [low, high] = [head * dim + i, head * dim + i + dim / 2];
        const [a, b] = [row[low]!, row[high]!];
        row[low] = a * Math.cos(angle) - b * Math.sin(angle);
        row[high] = b * Math.cos(angle) + a * Math.sin(angle);
      }
    }
  }

  /** Llama 3.1's scaling as its authors wrote it, by wavelengths. */
  #frequency(i: number, dim: number): number {
    const newer = this.#config['rope_parameters'] as Readonly<Record<string, number>> | undefined;
    const frequency = 1 / (newer?.['rope_theta'] ?? this.#number('rope_theta')) ** (2 * i / dim);
    const scaling = (this.#config['rope_parameters'] ?? this.#config['rope_scaling']) as Readonly<Record<string, number>> | undefined;
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

function dot(a: Vector, b: Vector): number {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i]! * b[i]!;
  return sum;
}

function addTo(to: Vector, from: Vector): void {
  for (let i = 0; i < to.length; i += 1) to[i]! += from[i]!;
}
