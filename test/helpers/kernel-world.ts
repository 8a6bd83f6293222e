// KernelWorld: a small cache, its kernels, and the same sequences in plain arrays; a test lets them compute steps, and every
// output is compared with plain attention. The rows it passes are typed arrays on host; on a device (mock) they are memory of
// the same driver, written and read through it.

import type { ExecutionContext } from 'ava';

import {
  Kernels, KvCache, onDemand, type Driver, type KernelsOptions, type LayoutKind, type ModelShape, type RowBuffer, type RowDtype,
  type Sequence,
} from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import { DeviceFloats } from './device-floats.js';
import { DeviceRows } from './device-rows.js';
import { fromRows, roundTo, toRows } from './floats.js';
import { PlainAttention, type AttentionShape, type PlainRules } from './plain-attention.js';

export interface WorldOptions {
  readonly layers?: number;
  readonly kvHeads: number;
  readonly group: number;
  readonly dim: number;
  readonly valueDim?: number;
  readonly cacheDtype?: RowDtype;
  readonly rowDtype?: RowDtype;
  readonly layout?: LayoutKind;
  readonly slots?: number;
  readonly maxTokens?: number;
  readonly pageBytes?: number;
  readonly kernels?: Partial<KernelsOptions>;
  /** Of each layer. Default: none. */
  readonly rules?: readonly PlainRules[];
  /** Numbers from −spread to spread. Default 1. */
  readonly spread?: number;
}

export const pageBytes = 65_536;

/** Of a large step so many rows are compared, and the last of each sequence. */
const comparedRows = 24;

/** How far results may be off, relative to the largest value there is: the arithmetic is float, the output rounded. */
const tolerance: Readonly<Record<RowDtype, number>> = { float32: 2e-6, float16: 6e-4, bfloat16: 5e-3 };

interface Member {
  readonly sequence: Sequence;
  readonly plain: readonly PlainAttention[];
}

export class KernelWorld {
  readonly cache: KvCache;
  readonly kernels: Kernels;
  readonly shape: AttentionShape;
  readonly #t: ExecutionContext;
  readonly #random: Random;
  readonly #cacheDtype: RowDtype;
  readonly #rowDtype: RowDtype;
  readonly #layers: number;
  readonly #rules: readonly PlainRules[] | undefined;
  readonly #sinks: DeviceFloats | undefined;
  readonly #spread: number;
  readonly #device: DeviceRows | undefined;
  readonly #members: Member[] = [];

  constructor(t: ExecutionContext, driver: Driver, random: Random, options: WorldOptions) {
    const { layers = 2, kvHeads, group, dim, valueDim = dim, cacheDtype = 'float32', rowDtype = 'float32' } = options;
    const { layout = 'per-layer', slots = 4, maxTokens = 600, kernels = {}, spread = 1 } = options;
    const { pageBytes: ownPageBytes = pageBytes, rules } = options;
    this.#t = t;
    this.#random = random;
    [this.#cacheDtype, this.#rowDtype, this.#layers, this.#rules, this.#spread] = [cacheDtype, rowDtype, layers, rules, spread];
    this.shape = { queryHeads: kvHeads * group, kvHeads, dim, valueDim, scale: kernels.scale ?? 1 / Math.sqrt(dim) };
    const model: ModelShape = { layers, kvHeads, headDim: dim, valueHeadDim: valueDim, dtype: cacheDtype };
    this.cache = new KvCache({
      model, layout, slots, maxTokens, driver, pageBytes: ownPageBytes, memoryBudgetBytes: 256 * 2 ** 20, growth: onDemand(), mapper: 'off',
    });
    if (driver.kind !== 'host' && rules !== undefined) this.#sinks = new DeviceFloats(driver, 2 ** 16);
    const attention = rules?.map(({ sinks, ...rest }) => {
      const floats = sinks === undefined ? undefined : Float32Array.from(sinks);
      return { ...rest, sinks: floats === undefined || this.#sinks === undefined ? floats : this.#sinks.put(floats) };
    });
    this.kernels = new Kernels({ cache: this.cache, queryHeads: kvHeads * group, rowDtype, attention, ...kernels });
    this.#device = driver.kind === 'host' ? undefined : new DeviceRows(driver, ownPageBytes);
  }

  /** Sequences that live, in the order of `acquire`. */
  get lengths(): readonly number[] {
    return this.#members.map(({ sequence }) => sequence.length);
  }

  acquire(): Sequence {
    const sequence = this.cache.acquire();
    const plain = Array.from({ length: this.#layers }, (_, layer) => new PlainAttention(this.shape, this.#rules?.[layer]));
    this.#members.push({ sequence, plain });
    return sequence;
  }

  /**
   * One step: tokens[i] new tokens of sequence i. Appends random K and V in every layer, attends, and compares. Decodes when
   * all have one token at most, unless told to prefill.
   */
  step(tokens: readonly number[], { as = 'fastest', through = 'batch' }: {
    readonly as?: 'fastest' | 'prefill'; readonly through?: 'batch' | 'arrays';
  } = {}): void {
    const { queryHeads, kvHeads, dim, valueDim } = this.shape;
    const batch = this.cache.createBatch();
    const members = this.#members.filter((_, index) => through === 'arrays' || (tokens[index] ?? 0) > 0);
    const counts = members.map((member) => tokens[this.#members.indexOf(member)] ?? 0);
    members.forEach(({ sequence }, index) => {
      if (counts[index]! > 0) batch.add(sequence, counts[index]!);
    });
    this.cache.prepare(batch);
    const sequences = through === 'batch' ? batch : {
      slots: Int32Array.from(members, ({ sequence }) => sequence.slot),
      lengths: Int32Array.from(members, ({ sequence }) => sequence.length),
      tokens: Int32Array.from(counts),
    };
    const rows = counts.reduce((sum, count) => sum + count, 0);
    const isDecoding = as === 'fastest' && counts.every((count) => count <= 1);
    for (let layer = 0; layer < this.#layers; layer += 1) {
      const [keys, values] = [this.#rows(rows * kvHeads * dim), this.#rows(rows * kvHeads * valueDim)];
      const queries = this.#rows(rows * queryHeads * dim);
      this.#withBuffers([keys, values], [], ([k, v]) => this.kernels.append(layer, sequences, k!, v!));
      const [output] = this.#withBuffers([queries], [rows * queryHeads * valueDim], ([q], [o]) => {
        if (isDecoding) this.kernels.decodeAttention(layer, sequences, q!, o!);
        else this.kernels.prefillAttention(layer, sequences, q!, o!);
      });
      let row = 0;
      members.forEach(({ sequence, plain }, index) => {
        for (let token = 0; token < counts[index]!; token += 1, row += 1) {
          const stored = (from: readonly number[], width: number): number[] =>
            from.slice(row * width, (row + 1) * width).map((value) => roundTo(this.#cacheDtype, value));
          plain[layer]!.keys.push(stored(keys, kvHeads * dim));
          plain[layer]!.values.push(stored(values, kvHeads * valueDim));
          const isLast = token === counts[index]! - 1;
          if (!isLast && !this.#random.chance(comparedRows / rows)) continue;
          const query = queries.slice(row * queryHeads * dim, (row + 1) * queryHeads * dim);
          const expected = plain[layer]!.attend(query, sequence.length + token + 1);
          this.#compare(output!.slice(row * queryHeads * valueDim, (row + 1) * queryHeads * valueDim), expected,
            `${isDecoding ? 'decode' : 'prefill'}, layer ${layer}, sequence ${index}, token ${sequence.length + token}`);
        }
      });
    }
    this.cache.commit(batch);
  }

  /** Copies the first tokens of a sequence over those of another, so that later steps attend to the copy. */
  copyTokens(from: number, to: number, tokens: number): void {
    const [source, target] = [this.#members[from]!, this.#members[to]!];
    this.kernels.copyTokens([
      { fromSlot: source.sequence.slot, fromToken: 0, toSlot: target.sequence.slot, toToken: 0, tokens }]);
    target.plain.forEach((plain, layer) => {
      plain.keys.splice(0, tokens, ...source.plain[layer]!.keys.slice(0, tokens));
      plain.values.splice(0, tokens, ...source.plain[layer]!.values.slice(0, tokens));
    });
  }

  close(): void {
    this.#device?.close();
    this.kernels.close();
    this.#sinks?.close();
    for (const { sequence } of this.#members) sequence.release();
    this.cache.close();
  }

  /** Random values of the rows' type. */
  #rows(length: number): number[] {
    return Array.from({ length }, () => roundTo(this.#rowDtype, this.#spread * (2 * this.#random.next() - 1)));
  }

  #compare(actual: readonly number[], expected: readonly number[], where: string): void {
    const { dim, scale } = this.shape;
    const scoreError = scale * this.#spread ** 2 * dim * 2 ** -22; // of the largest score there can be
    const allowed = (tolerance[this.#rowDtype] + scoreError) * this.#spread;
    const isOff = (value: number, i: number): boolean => !(Math.abs(value - actual[i]!) <= allowed); // NaN too
    const first = expected.findIndex(isOff);
    if (first === -1) {
      this.#t.pass();
      return;
    }
    const { valueDim } = this.shape;
    const off = expected.filter(isOff).length;
    const worst = expected.reduce((most, value, i) => {
      const difference = Math.abs(value - actual[i]!);
      return difference <= most ? most : difference; // NaN is the worst
    }, 0);
    this.#t.fail(`${where}, ${this.#cacheDtype} cache, ${this.#rowDtype} rows, ${this.cache.layout.kind} layout, ${JSON.stringify(this.shape)}: `
      + `${off} of ${expected.length} elements are off, by ${worst} at most, ${allowed} allowed; first head ${Math.floor(first / valueDim)} `
      + `element ${first % valueDim}: ${actual[first]}, expected ${expected[first]}`);
  }

  /** Calls with the inputs where the kernels can read them; returns the outputs. */
  #withBuffers(
    inputs: readonly (readonly number[])[], outputs: readonly number[],
    call: (inputs: RowBuffer[], outputs: RowBuffer[]) => void,
  ): number[][] {
    const given = inputs.map((values) => toRows(this.#rowDtype, values));
    const results = outputs.map((length) => toRows(this.#rowDtype, new Array<number>(length).fill(0)));
    if (this.#device === undefined) call(given, results);
    else this.#device.run(given, results, call);
    return results.map((rows) => fromRows(this.#rowDtype, rows));
  }
}
