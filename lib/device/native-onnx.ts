// A session of onnxruntime, as the addon has it. lib/onnx/session.ts validates.

/** What a run of a graph with the cache's attention computes. */
export interface NativeOnnxPass {
  /** Tensors by layer, as KernelLayers flattens them. */
  readonly layers: Float64Array;
  /** [slot, length, new tokens, first row] × sequences. */
  readonly spans: Int32Array;
  readonly slots: number;
  readonly maxTokens: number;
  /** Number of the cache's dtype, as the kernels'. */
  readonly cacheDtype: number;
}

export interface NativeOnnxOptions {
  readonly library: string;
  readonly folder: string;
  readonly threads: number;
  /** Read until `open` is answered. */
  readonly model: Uint8Array;
  /** Name of the kernels' module that the driver has loaded; undefined on the CPU. */
  readonly module: string | undefined;
}

/** `outputs`: type, dims as a Float64Array and bytes as an ArrayBuffer of each that had no memory. */
export type NativeOnnxAnswer =
  (id: number, error: Error | undefined, text: string, outputs: readonly unknown[]) => void;

export interface NativeOnnx {
  open(id: number): void;
  /** (id, pass, then of each tensor: whether it is an output, name, type, dims, memory) */
  run(id: number, pass: NativeOnnxPass | undefined, ...tensors: readonly unknown[]): void;
  abort(id: number): void;
  close(): void;
}
