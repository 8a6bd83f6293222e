// OnnxEngine: passes of the schedulers as runs of a decoder's graph over one cache. All new tokens of a pass go through the graph as one
// row, whichever sequences they are of; where their K and V lie, attention knows from the pass.

import { createError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import { instanceOf } from '../base/options.js';
import type { NativeOnnxPass } from '../device/native-onnx.js';
import { KvCache, type Driver, type Engine, type EnginePass } from '../index.js';
import { attendable, KernelLayers } from '../kernels/kernel-layers.js';
import { kernelsOf } from '../kernels/load-kernels.js';
import type { DecoderGraph, DecoderInput } from './decoder-graph.js';
import { elements } from './graph.js';
import type { OnnxInput, OnnxSession } from './session.js';

/** What `decoder.engine` gives it. */
interface Parts {
  readonly graph: DecoderGraph;
  readonly session: OnnxSession;
  /** Of the device that computes; undefined: the CPU. */
  readonly driver: Driver | undefined;
  readonly cache: KvCache;
}

/** What a pass is answered with. */
export interface OnnxOutput {
  /** [sequence, token of the vocabulary]; valid until the next pass. */
  readonly logits: Float32Array;
}

/** An `Engine` over one cache. `decoder.engine(cache)` makes it; it has nothing to close. */
export class OnnxEngine implements Engine {
  /** Tokens of the vocabulary. */
  readonly vocabularyTokens: number;
  /** Of a request, its tokens alone. */
  readonly reads = [];
  readonly #graph: DecoderGraph;
  readonly #session: OnnxSession;
  readonly #lifetime: KvCache['lifetime'];
  readonly #cache: Omit<NativeOnnxPass, 'spans'>;
  #logits = new Float32Array(0);

  /** @internal */
  constructor({ graph, session, driver, cache }: Parts) {
    instanceOf(KvCache)(cache, { owner: 'OnnxDecoder.engine', option: 'cache' });
    checkPlace(cache.driver, driver);
    checkShape(graph, cache);
    const layers = new KernelLayers(cache, { queryHeads: graph.layers.map(({ heads }) => heads) });
    this.vocabularyTokens = graph.vocabularyTokens;
    this.#graph = graph;
    this.#session = session;
    this.#lifetime = cache.lifetime;
    this.#cache = {
      layers: layers.numbers().layers, slots: cache.layout.slots, maxTokens: cache.layout.maxTokens, cacheDtype: attendable.indexOf(layers.cacheDtype),
    };
  }

  /** Computes chunks of prompts. Rejects with KV_ONNX_FAILED, KV_ABORTED, KV_CLOSED. */
  prefill(pass: EnginePass): Promise<OnnxOutput> {
    return this.#compute(pass);
  }

  /** Computes one token of each sequence. Rejects as `prefill`. */
  decode(pass: EnginePass): Promise<OnnxOutput> {
    return this.#compute(pass);
  }

  async #compute({ length, slots, positions, tokenCounts, tokens, wantsLogits, signal }: EnginePass): Promise<OnnxOutput> {
    const spans = new Int32Array(4 * length);
    let rows = 0;
    for (let index = 0; index < length; index += 1) {
      spans.set([slots[index]!, positions[index]!, tokenCounts[index]!, rows], 4 * index);
      rows += tokenCounts[index]!;
    }
    const count = Math.max(1, wantsLogits.subarray(0, length).lastIndexOf(1) + 1);
    const wanted = Int32Array.from({ length: count }, (_, index) => spans[4 * index + 3]! + spans[4 * index + 2]! - 1);
    return { logits: await this.computeRows({ spans, tokens: tokens.subarray(0, rows), wanted }, { signal }) };
  }

  /**
   * Computes a pass, and the logits [wanted row, token of the vocabulary], which are valid until the next pass. The cache cannot be closed
   * meanwhile. Rejects as `prefill`. @internal
   */
  async computeRows(pass: OnnxRows, { signal }: { readonly signal: AbortSignal }): Promise<Float32Array> {
    this.#lifetime.check('compute a pass');
    const inputs = this.#graph.inputs.map((input) => fill(input, pass));
    const { length: wanted } = pass.wanted;
    const count = wanted * this.vocabularyTokens;
    if (count > this.#logits.length) this.#logits = new Float32Array(count);
    const data = this.#logits.subarray(0, count);
    const leavePass = this.#lifetime.enterPass();
    try {
      await this.#session.run({
        inputs, outputs: [{ name: 'logits', type: elements.float32, dims: [1, wanted, this.vocabularyTokens], data }],
        pass: { ...this.#cache, spans: pass.spans }, signal,
      });
    } finally {
      leavePass();
    }
    return data;
  }
}

/** The tokens of a pass as rows of the graph. @internal */
export interface OnnxRows {
  /** [slot, position, tokens, first row] × sequences. */
  readonly spans: Int32Array;
  /** [row] */
  readonly tokens: Int32Array;
  /** The rows whose logits are computed, one at least. */
  readonly wanted: Int32Array;
  /** Of the first token of every sequence, in `position_ids`. Default 0. */
  readonly firstPosition?: number;
}

function fill({ name, kind, type, rank }: DecoderInput, { spans, tokens, wanted, firstPosition = 0 }: OnnxRows): OnnxInput {
  const { length: rows } = tokens;
  let dims: readonly number[] = [1, rows];
  let numbers: Int32Array;
  if (kind === 'tokens') numbers = tokens;
  else if (kind === 'positions' || kind === 'places') {
    numbers = new Int32Array(rows);
    for (let at = 0; at < spans.length; at += 4) {
      const first = (kind === 'positions' ? firstPosition : 0) + spans[at + 1]!;
      for (let token = 0; token < spans[at + 2]!; token += 1) numbers[spans[at + 3]! + token] = first + token;
    }
  } else if (kind === 'rows') {
    dims = [wanted.length];
    numbers = wanted;
  } else {
    dims = new Array<number>(rank).fill(1);
    numbers = new Int32Array(1);
  }
  return { name, type, dims, data: type === elements.int32 ? numbers : BigInt64Array.from(numbers, BigInt) };
}

const refuse = (expected: string, received: string | number, hint: string): never => {
  throw createError('KV_INVALID_OPTION', { reason: 'range', owner: 'OnnxDecoder.engine', option: 'cache', expected, received, hint });
};

/** Throws KV_INVALID_OPTION unless the cache's memory is where the decoder computes. */
function checkPlace(own: Driver, driver: Driver | undefined): void {
  const received = `one of the driver ${own.kind}${own.kind === 'cuda' ? ` on device ${own.info.device}` : ''}`;
  if (driver === undefined) {
    if (kernelsOf(own) !== 'cpu') refuse("one in the CPU's memory", received, "Open it with `driver: 'host'`, or the decoder with the cache's `driver`.");
  } else if (own.kind !== driver.kind || own.info.device !== driver.info.device) {
    refuse(`one on device ${driver.info.device}`, received, "Open it with the decoder's `driver`.");
  }
}

/** Throws KV_INVALID_OPTION unless the cache has K and V of each layer of the graph. */
function checkShape({ layers, maxTokens }: DecoderGraph, { tensors, layout }: KvCache): void {
  const open = 'Open it with `model: decoder.model()`.';
  const shape = `one of the graph's shape, ${formatCount('layer', layers.length)}`;
  if (tensors.length !== 2 * layers.length || tensors[0]!.layer !== 0) refuse(shape, `one of ${formatCount('tensor', tensors.length)}`, open);
  layers.forEach(({ window }, layer) => {
    const { kind, windowTokens = 0 } = layout.sets.find((set) => set.layers.includes(layer))!;
    if (kind === 'full' || (window > 0 && window <= windowTokens)) return;
    const kept = window === 0 ? 'all tokens' : `the last ${formatCount('token', window)}`;
    refuse(`one that keeps ${kept} of layer ${layer}`, `one with that layer in a layer set of kind ${kind}`, open);
  });
  for (const { layer, role, heads, dim, dtype } of tensors) {
    const { kvHeads, dim: keyDim, valueDim } = layers[layer]!;
    if (role === 'latent' || !attendable.includes(dtype)) refuse(`one of K and V in ${attendable.join(', ')}`, `one of ${role === 'latent' ? 'latent attention' : dtype}`, open);
    if (heads !== kvHeads || dim !== (role === 'key' ? keyDim : valueDim)) {
      refuse(shape, `layer ${layer} with a ${role} of ${heads} × ${dim}`, open);
    }
  }
  if (maxTokens !== undefined && layout.maxTokens > maxTokens) {
    refuse(`one of at most ${formatNumber(maxTokens)} tokens (\`maxTokens\`), which the graph has positions for`, layout.maxTokens, `Open it with \`maxTokens: ${maxTokens}\` or less.`);
  }
}
