// The addon's kernel classes as TypeScript sees them; types only. They do not check their arguments: lib/kernels
// validates before it calls.

/** Rows of an engine as the addon takes them: a typed array, or an address. */
export type NativeRows = Float32Array | Uint16Array | Uint8Array | bigint;

/** Vector instructions of the CPU. */
export type Instructions = 'auto' | 'avx512' | 'avx2' | 'portable';

export interface NativeKernelsOptions {
  /**
   * Per layer: address, slot, token and head bytes, heads, dim of K, then of V; query heads; scale; window, chunk and
   * soft cap, 0 for none; of its sinks the address or 0, and their place in `sinks` or −1.
   */
  readonly layers: Float64Array;
  readonly sinks: Float64Array;
  /** Per reservation: address, slot bytes, token bytes. */
  readonly regions: Float64Array;
  readonly slots: number;
  readonly maxTokens: number;
  readonly cacheDtype: number;
  readonly rowDtype: number;
  readonly threads: number;
  readonly instructions: Instructions;
  readonly stream: bigint;
  readonly workspaceBytes: number;
  /** Name of the loaded module; undefined on host. */
  readonly module: string | undefined;
}

/** The kernels over one cache. `spans` is [slot, length, tokens, first row] × count. */
export interface NativeKernels {
  target(): string;
  append(layer: number, spans: Int32Array, count: number, keys: NativeRows, values: NativeRows): void;
  /** `copies` is [from slot, from token, to slot, to token, tokens] × count. */
  copyTokens(copies: Int32Array, count: number): void;
  decodeAttention(layer: number, spans: Int32Array, count: number, queries: NativeRows, output: NativeRows): void;
  prefillAttention(layer: number, spans: Int32Array, count: number, queries: NativeRows, output: NativeRows): void;
  /** While a step is captured, on a device: `list` is the address of `count` spans, read when the kernels run. */
  appendStep(layer: number, list: bigint, count: number, keys: NativeRows, values: NativeRows): void;
  decodeStep(layer: number, list: bigint, count: number, queries: NativeRows, output: NativeRows): void;
  /** Starts recording the stream. `endCapture` returns the graph. */
  beginCapture(): void;
  endCapture(): bigint;
  abortCapture(): void;
  /** Copies bytes to `to`, then launches the graph, both on the stream. */
  replay(graph: bigint, to: bigint, bytes: Uint8Array): void;
  dropGraph(graph: bigint): void;
  /** Makes the device current on this thread until `leave`. Calls nest. */
  enter(): void;
  leave(): void;
  close(): void;
}

export interface NativeDenseOptions {
  readonly threads: number;
  readonly instructions: Instructions;
  readonly stream: bigint;
  /** As NativeKernelsOptions'; undefined on the CPU. */
  readonly module: string | undefined;
  /** `off`, `auto`, or a path. */
  readonly cublas: string;
  readonly workspaceBytes: number;
}

/** The dense kernels. A matrix is passed as its data, its dtype's number and its number of outputs. */
export interface NativeDense {
  target(): string;
  /** (input, rows, inputs, then of each product: weight, dtype, outputs, bias, output, whether it adds) */
  multiply(...given: (NativeRows | number | boolean | undefined)[]): void;
  normalize(
    input: NativeRows, rows: number, weight: NativeRows, width: number, epsilon: number, output: NativeRows,
    adds: boolean,
  ): void;
  /** `areNeighbours`: on the CPU alone. */
  rotate(
    rows: NativeRows, count: number, heads: number, dim: number, positions: Int32Array | bigint, table: NativeRows,
    areNeighbours: boolean,
  ): void;
  gate(gate: NativeRows, up: NativeRows, count: number, output: NativeRows, activation: number): void;
  cap(values: NativeRows, count: number, cap: number): void;
  gather(
    table: NativeRows, dtype: number, width: number, tokens: Int32Array | bigint, rows: number, output: NativeRows,
    factor: number,
  ): void;
  close(): void;
}

export interface NativeSamplingOptions {
  readonly threads: number;
  readonly instructions: Instructions;
}

/** Choosing tokens from logits. */
export interface NativeSampling {
  target(): string;
  /**
   * (logits, vocabulary, choices, numbers, most likely tokens wanted of each, tokens, log-probabilities, most likely
   * tokens, their log-probabilities, then, unless no choice has either, of each: its text, the tokens of its bias, the
   * bias)
   */
  choose(...given: (Float32Array | Float64Array | Int32Array | number | undefined)[]): void;
}
