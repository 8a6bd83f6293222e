// DecoderSession: what transformers.js has in the place of onnxruntime's InferenceSession for a decoder. Its inputs and
// outputs are the graph's; its pasts are tensors without bytes, by which it knows the texts in the cache. Owns the
// decoder, the cache and the pasts that were left behind.

import { createError } from '../base/errors.js';
import type { KvCache } from '../index.js';
import type { OnnxDecoder } from '../onnx/index.js';
import type { DecoderPlan } from '../onnx/decoder-graph.js';
import { elements, type OnnxValue } from '../onnx/graph.js';
import { modelError } from '../llama/model-error.js';
import { ForwardLoop, type ForwardRow, type ForwardTotals } from './forward-loop.js';
import { Past, PastText } from './past.js';
import type { OrtTensor, Runtime } from './runtime.js';

const typeNames: Readonly<Record<number, string>> = {
  [elements.float32]: 'float32',
  [elements.float16]: 'float16',
  [elements.int64]: 'int64',
  [elements.int32]: 'int32',
  [elements.bool]: 'bool',
};

/**
 * transformers.js gives it to a session that has it: 1 while it generates, 0 where it wants the logits of all tokens.
 */
const kept = 'num_logits_to_keep';

export type Feeds = Readonly<Record<string, OrtTensor | undefined>>;

/** As `InferenceSession.inputMetadata`. */
export interface ValueMetadata {
  readonly name: string;
  readonly isTensor: true;
  readonly type: string;
  readonly shape: readonly (number | string)[];
}

/** What a decoder's session must be able to give: its logits, and what its attention keeps. Throws KV_MODEL_INVALID. */
export function checkOutputs({ graph, source, layers }: DecoderPlan): void {
  const presents = new Set(layers.flatMap(({ present }) => present));
  const other = graph.outputs.find(({ name }) => name !== 'logits' && !presents.has(name));
  if (other !== undefined)
    throw modelError(
      `${source} has the output ${JSON.stringify(other.name)} beside logits and presents. Export the model without it.`,
    );
}

export interface DecoderSessionOptions {
  readonly plan: DecoderPlan;
  readonly decoder: OnnxDecoder;
  readonly cache: KvCache;
  readonly runtime: Runtime;
  readonly prefillTokensPerStep: number;
  readonly waitMs: number;
  /** Of all models on the same pool. */
  readonly loops: Set<ForwardLoop>;
}

export class DecoderSession {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  readonly inputMetadata: readonly ValueMetadata[];
  readonly outputMetadata: readonly ValueMetadata[];
  readonly cache: KvCache;
  readonly #runtime: Runtime;
  readonly #decoder: OnnxDecoder;
  readonly #loop: ForwardLoop;
  readonly #pastNames: readonly string[];
  /** What tensors stand for; they do so also when they were disposed, as tensors of the CPU's memory would. */
  readonly #pasts = new WeakMap<OrtTensor, Past>();
  /** Releases pasts that nobody has disposed. */
  readonly #left: FinalizationRegistry<readonly PastText[]>;
  #closing: Promise<void> | undefined;

  constructor({
    plan: { graph, layers },
    decoder,
    cache,
    runtime,
    prefillTokensPerStep,
    waitMs,
    loops,
  }: DecoderSessionOptions) {
    this.inputMetadata = [
      ...graph.inputs.map(metadataOf),
      ...(graph.inputs.some(({ name }) => name === kept) ? [] : [keptMetadata]),
    ];
    this.outputMetadata = graph.outputs.map(metadataOf);
    this.inputNames = this.inputMetadata.map(({ name }) => name);
    this.outputNames = this.outputMetadata.map(({ name }) => name);
    this.cache = cache;
    this.#runtime = runtime;
    this.#decoder = decoder;
    this.#loop = new ForwardLoop({ cache, engine: decoder.engine(cache), prefillTokensPerStep, waitMs, loops });
    this.#pastNames = layers.flatMap(({ past }) => past);
    this.#left = new FinalizationRegistry((texts) => {
      this.#loop.release(texts);
    });
  }

  get totals(): Readonly<ForwardTotals> {
    return this.#loop.totals;
  }

  /**
   * Computes what is new behind a past, as the graph would over tensors. Rejects as `ForwardLoop.compute`, and with
   * KV_INVALID_OPTION for other pasts.
   */
  async run(feeds: Feeds): Promise<Record<string, OrtTensor>> {
    if (this.#closing !== undefined)
      throw createError('KV_CLOSED', { operation: 'compute a pass', owner: 'OnnxDecoder' });
    const call = this.#read(feeds);
    const { rows, batch, columns, wanted } = call;
    const past = new Past(
      rows.map(({ text }) => text),
      columns,
      this.outputNames.length - 1,
      (own) => {
        this.#left.unregister(own);
        this.#loop.release(own.texts);
      },
    );
    for (const { text } of rows) text.pasts += 1;
    try {
      await this.#promote(rows);
      const logits = await this.#loop.compute(rows);
      this.#left.register(past, past.texts, past);
      return this.#outputs(
        past,
        new this.#runtime.Tensor('float32', logits, [batch, wanted, this.#decoder.vocabularyTokens]),
      );
    } catch (error) {
      this.#loop.release(past.texts);
      throw error;
    }
  }

  /** Ends its calls, and closes the cache and the decoder. */
  release(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  startProfiling(): void {}

  endProfiling(): void {}

  async #close(): Promise<void> {
    await this.#loop.close();
    try {
      await this.cache.shutdown();
    } finally {
      this.#decoder.close();
    }
  }

  /** Brings what tiers have of new texts. */
  async #promote(rows: readonly ForwardRow[]): Promise<void> {
    const { prefixes } = this.cache;
    if (prefixes.tiers === undefined) return;
    const fresh = rows.filter(({ text, places }) => text.sequence === undefined && places.some((token) => token > 0));
    await Promise.all(fresh.map(({ text }) => prefixes.promote({ tokens: text.tokens, adapter: text.adapter })));
  }

  #outputs(past: Past, logits: OrtTensor): Record<string, OrtTensor> {
    const { Tensor } = this.#runtime;
    const outputs: Record<string, OrtTensor> = {};
    for (const { name, type, shape } of this.outputMetadata) {
      if (name === 'logits') outputs[name] = logits;
      else {
        const dims = [past.texts.length, Number(shape[1]), past.columns, Number(shape[3])];
        const tensor = Tensor.fromGpuBuffer(past, {
          dataType: type,
          dims,
          dispose: () => {
            past.dropTensor();
          },
        });
        this.#pasts.set(tensor, past);
        outputs[name] = tensor;
      }
    }
    return outputs;
  }

  /** Reads a call, and adds its tokens to the texts of its past, or begins new ones. Throws KV_INVALID_OPTION. */
  #read(feeds: Feeds) {
    const { dims, data } = given(feeds, 'input_ids');
    const [batch = 0, added = 0] = dims;
    if (dims.length !== 2 || batch < 1 || added < 1)
      throw refuse('input_ids', 'of the shape [batch, tokens]', `[${dims.join(', ')}]`);
    const past = this.#pastOf(feeds, batch);
    const before = past?.columns ?? 0;
    const columns = before + added;
    const mask = this.inputNames.includes('attention_mask') ? given(feeds, 'attention_mask') : undefined;
    if (mask !== undefined && (mask.dims[0] !== batch || mask.dims[1] !== columns)) {
      throw refuse(
        'attention_mask',
        `of the shape [${batch}, ${columns}]: the past's columns and the new ones`,
        `[${mask.dims.join(', ')}]`,
      );
    }
    const keep = Number(given(feeds, kept).data[0]);
    const wanted = keep === 0 ? added : Math.min(keep, added);
    const rows = Array.from({ length: batch }, (_, row): ForwardRow => {
      const seen = Array.from({ length: columns }, (_unused, column) =>
        mask === undefined || Number(mask.data[row * columns + column]) !== 0 ? 1 : 0,
      );
      const ids = Array.from({ length: added }, (_unused, at) => Number(data[row * added + at]));
      const text =
        past === undefined
          ? new PastText({ firstPosition: firstPositionOf(feeds, row, added, seen) })
          : continued(past, row, seen);
      const tokensBefore = text.tokens.length;
      const fresh = ids.filter((_id, at) => seen[before + at] === 1);
      for (const id of fresh) text.tokens.push(id); // more than a call may have arguments
      for (const isSeen of seen.slice(before)) text.isSeen.push(isSeen);
      if (fresh.length > 0) text.sequence?.append(fresh);
      return { text, places: placesOf(tokensBefore, seen.slice(before), wanted) };
    });
    return { rows, batch, columns, wanted };
  }

  /**
   * The past that is given; undefined: none. Throws KV_INVALID_OPTION for one that is not this session's, or of another
   * batch.
   */
  #pastOf(feeds: Feeds, batch: number): Past | undefined {
    const tensors = this.#pastNames.map((name) => given(feeds, name));
    const past = this.#pasts.get(tensors[0]!);
    if (past?.texts.length !== batch && past !== undefined)
      throw refuse('past_key_values', `of a batch of ${batch}`, `one of ${past.texts.length}`);
    const other = tensors.findIndex(
      (tensor) => this.#pasts.get(tensor) !== past || (past === undefined && tensor.dims[2] !== 0),
    );
    if (other < 0) return past;
    throw refuse(
      this.#pastNames[other]!,
      'empty, or all of them what one call of this model has returned',
      `[${tensors[other]!.dims.join(', ')}]`,
    );
  }
}

function metadataOf({ name, type, dims = [] }: OnnxValue): ValueMetadata {
  return { name, isTensor: true, type: typeNames[type] ?? 'float32', shape: dims };
}

const keptMetadata: ValueMetadata = { name: kept, isTensor: true, type: 'int64', shape: [] };

function refuse(option: string, expected: string, received: string): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range',
    owner: 'InferenceSession.run',
    option,
    expected,
    received,
  });
}

function given(feeds: Feeds, name: string): OrtTensor {
  const tensor = feeds[name];
  if (tensor !== undefined) return tensor;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type',
    owner: 'InferenceSession.run',
    option: name,
    expected: 'a tensor',
    received: undefined,
  });
}

/**
 * The text that goes on from a row of a past: the same, or another one where that has gone on already, or other columns
 * are padding now.
 */
function continued({ texts, columns }: Past, row: number, seen: readonly number[]): PastText {
  const text = texts[row]!;
  const { firstPosition } = text;
  const isSame = text.isSeen.every((isSeen, column) => column >= columns || isSeen === seen[column]);
  if (isSame && text.columns === columns && !text.isBusy) return text;
  const byColumn = text.tokensByColumn(columns);
  const isSeen = seen.slice(0, columns);
  if (isSame)
    return new PastText({ tokens: byColumn.filter((token) => token >= 0), isSeen, firstPosition, forkOf: text });
  const hidden = byColumn.findIndex((token, column) => token < 0 && isSeen[column] === 1);
  if (hidden >= 0) throw refuse('attention_mask', 'padding where it was in the past', `column ${hidden} of row ${row}`);
  return new PastText({ tokens: byColumn.filter((_token, column) => isSeen[column] === 1), isSeen, firstPosition });
}

/** The tokens whose logits stand in the last `wanted` of the new columns: padding has those of the token before it. */
function placesOf(tokensBefore: number, seen: readonly number[], wanted: number): number[] {
  let token = tokensBefore - 1;
  const places = seen.map((isSeen) => {
    token += isSeen;
    return token < tokensBefore ? -1 : token;
  });
  return places.slice(-wanted);
}

/** Of a new text's first token. Throws KV_INVALID_OPTION unless the others follow it. */
function firstPositionOf(feeds: Feeds, row: number, columns: number, seen: readonly number[]): number {
  const { position_ids: positions } = feeds;
  if (positions === undefined) return 0;
  let first: number | undefined;
  let tokens = 0;
  for (let column = 0; column < columns; column += 1) {
    if (seen[column] === 0) continue;
    const position = Number(positions.data[row * columns + column]);
    first ??= position;
    if (position !== first + tokens || first < 0)
      throw refuse(
        'position_ids',
        'one more for each token that is no padding',
        `${position} at column ${column} of row ${row}`,
      );
    tokens += 1;
  }
  return first ?? 0;
}
