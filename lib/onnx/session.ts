// OnnxSession: a graph in the user's own onnxruntime, computed on a thread of its own, one run after the other. Inputs and
// outputs are arrays of the caller's, which are read and written where they are until the run's promise settles.

import { createError } from '../base/errors.js';
import type { Driver } from '../device/driver.js';
import { native } from '../device/native.js';
import type { NativeOnnx, NativeOnnxAnswer, NativeOnnxPass } from '../device/native-onnx.js';
import { kernelModule } from '../kernels/load-kernels.js';
import type { Membership } from '../device/weak-users.js';

export type OnnxArray = Float32Array | BigInt64Array | Int32Array | Uint16Array | Uint8Array;

export interface OnnxInput {
  readonly name: string;
  /** A number of ONNX, which the array is of. */
  readonly type: number;
  readonly dims: readonly number[];
  readonly data: OnnxArray;
}

/** An output without `data` comes as the run's result, copied. */
export type OnnxOutput = Omit<OnnxInput, 'data'> & { readonly data?: OnnxArray | undefined };

export interface OnnxResult {
  readonly type: number;
  readonly dims: readonly number[];
  readonly bytes: ArrayBuffer;
}

export interface OnnxRun {
  readonly inputs: readonly OnnxInput[];
  readonly outputs: readonly OnnxOutput[];
  /** Of a graph with the cache's attention. */
  readonly pass?: NativeOnnxPass | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface OnnxSessionOptions {
  readonly library: string;
  /** Of files beside the graph; '': there are none. */
  readonly folder: string;
  readonly threads: number;
  readonly model: Uint8Array;
  /** Of the device that computes, by onnxruntime's CUDA provider. Default: the CPU computes. */
  readonly driver?: Driver | undefined;
}

interface Waiting {
  /** With the session's version, where it is the one that opened it. */
  readonly resolve: (results: readonly OnnxResult[], version: string) => void;
  readonly reject: (error: unknown) => void;
  /** What the run reads and writes. */
  readonly kept: unknown;
}

export class OnnxSession {
  readonly #native: NativeOnnx;
  readonly #waiting: Map<number, Waiting>;
  /** Of onnxruntime: `1.30.0`. */
  readonly version: string;
  readonly #driver: Driver | undefined;
  /** Among the users of the driver, which cannot be closed before the session. */
  readonly #membership: Membership<undefined> | undefined;
  #lastRun = 0;
  #isClosed = false;

  private constructor(own: NativeOnnx, waiting: Map<number, Waiting>, version: string, driver: Driver | undefined) {
    this.#native = own;
    this.#waiting = waiting;
    this.version = version;
    this.#driver = driver;
    this.#membership = driver?.addUser({ close: () => { own.close(); } });
  }

  /**
   * Opens a graph. Rejects with KV_ONNX_UNAVAILABLE where the library, or its CUDA provider, cannot be used, KV_ONNX_FAILED where it refuses the
   * graph; on a device as `loadKernels`.
   */
  static async open({ driver, ...options }: OnnxSessionOptions): Promise<OnnxSession> {
    const waiting = new Map<number, Waiting>();
    const module = driver === undefined ? undefined : kernelModule(driver);
    const own = new (native().NativeOnnx)({ ...options, module }, answerTo(waiting), driver?.native);
    try {
      const version = await new Promise<string>((resolve, reject) => {
        waiting.set(0, { resolve: (_results, text) => { resolve(text); }, reject, kept: options.model });
        own.open(0);
      });
      return new OnnxSession(own, waiting, version, driver);
    } catch (error) {
      own.close();
      throw error;
    }
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Computes outputs. Rejects with KV_ONNX_FAILED, KV_ABORTED, KV_CLOSED; nothing of it runs then. */
  async run({ inputs, outputs, pass, signal }: OnnxRun): Promise<readonly OnnxResult[]> {
    if (this.#isClosed) throw closed();
    if (signal?.aborted) throw aborted(signal);
    this.#lastRun += 1;
    const id = this.#lastRun;
    const given = [...inputs.flatMap((input) => tensorArguments(false, input)), ...outputs.flatMap((output) => tensorArguments(true, output))];
    const abort = (): void => { this.#native.abort(id); };
    signal?.addEventListener('abort', abort, { once: true });
    try {
      const results = await new Promise<readonly OnnxResult[]>((resolve, reject) => {
        this.#native.run(id, pass, ...given);
        this.#waiting.set(id, { resolve, reject, kept: given });
      });
      if (signal?.aborted) throw aborted(signal); // it was too late to end it
      return results;
    } catch (error) {
      throw signal?.aborted ? aborted(signal) : error;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }

  /** Ends what runs, waits for that, and rejects it. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#native.close();
    if (this.#membership !== undefined) this.#driver!.removeUser(this.#membership.memory);
    for (const { reject } of this.#waiting.values()) reject(closed());
    this.#waiting.clear();
  }
}

/** Settles what waits. A function apart, since the session keeps it, and with it all that it could see: the graph's bytes, if that was in `open`. */
const answerTo = (waiting: Map<number, Waiting>): NativeOnnxAnswer => (id, error, text, outputs) => {
  const run = waiting.get(id);
  waiting.delete(id);
  if (error !== undefined) run?.reject(error);
  else run?.resolve(readResults(outputs), text);
};

const closed = (): Error => createError('KV_CLOSED', { operation: 'compute a pass', owner: 'OnnxDecoder' });

function aborted(signal: AbortSignal): Error {
  return createError('KV_ABORTED', { operation: 'computing a pass' }, { cause: signal.reason });
}

function tensorArguments(isOutput: boolean, { name, type, dims, data }: OnnxOutput): (boolean | string | number | Float64Array | OnnxArray | undefined)[] {
  return [isOutput, name, type, Float64Array.from(dims), data];
}

function readResults(outputs: readonly unknown[]): OnnxResult[] {
  const results: OnnxResult[] = [];
  for (let at = 0; at < outputs.length; at += 3) {
    results.push({ type: outputs[at] as number, dims: [...outputs[at + 1] as Float64Array], bytes: outputs[at + 2] as ArrayBuffer });
  }
  return results;
}
