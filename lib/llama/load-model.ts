// loadModel: a model's config and its weights from its files, on the thread that calls it. It converts what is to be int8; the files' handles
// stay open until the caller closes them, so that another thread may map the same files. loadOnThread: the same on a worker thread, which ends
// before the promise settles. What the worker mapped is mapped here again, from its handles, before it ends; arrays are shared.

import path = require('node:path');
import { Worker } from 'node:worker_threads';

import { createError } from '../base/errors.js';
import type { DenseKernels, DenseKernelsOptions } from '../index.js';
import type { LlamaConfig } from './config.js';
import { endedError, receivedError, type SentError } from './model-error.js';
import { openModelFiles } from './model-files.js';
import { WeightFile, type CopiedFile, type SentFile, type WeightPlacement } from './weight-file.js';
import { mapWeights, quantized, readLlamaWeights, type LlamaWeights } from './weights.js';

/** Where weights are, and whether matrices become int8. */
export type WeightKind = WeightPlacement | 'int8';

export class LoadedModel {
  readonly config: LlamaConfig;
  readonly weights: LlamaWeights;
  /** Files that were to be mapped and are not. */
  readonly copiedFiles: readonly CopiedFile[];
  /** When nothing more is to be opened by the files' handles. Idempotent. */
  readonly close: () => void;
  readonly #isLoaded = true;

  constructor(
    config: LlamaConfig, weights: LlamaWeights, copiedFiles: readonly CopiedFile[], close: () => void = () => {},
  ) {
    this.config = config;
    this.weights = weights;
    this.copiedFiles = copiedFiles;
    this.close = close;
  }

  static isInstance(value: unknown): value is LoadedModel {
    return typeof value === 'object' && value !== null && #isLoaded in value;
  }
}

/** Loads a folder or a `.gguf` file. Throws KV_MODEL_INVALID, and KV_INVALID_OPTION for what is no path; then nothing stays open. */
export function loadModel(model: string, kind: WeightKind, dense: DenseKernels): LoadedModel {
  const isInt8 = kind === 'int8';
  const { config, tensors } = openModelFiles(model, isInt8 ? 'mapped' : kind);
  try {
    const weights = readLlamaWeights(tensors, config, dense, (name, weight) => isInt8 && weight.dtype !== 'int8' ? quantized(name, weight, dense) : weight);
    for (const file of tensors.files) file.check();
    const copied = tensors.files.map((file) => file.copied).filter((file) => file !== undefined);
    return new LoadedModel(config, weights, isInt8 ? [] : copied, () => tensors.close());
  } catch (error) {
    tensors.close();
    throw error;
  }
}

/** What a thread is to load. */
export interface LoadRequest {
  readonly model: string;
  readonly kind: WeightKind;
  readonly options: Pick<DenseKernelsOptions, 'threads' | 'instructions'>;
}

/** Weights whose addresses are in the files as this thread has mapped them. */
export interface SentModel {
  readonly config: LlamaConfig;
  readonly weights: Omit<LlamaWeights, 'files'>;
  readonly files: readonly SentFile[];
  readonly copiedFiles: readonly CopiedFile[];
}

/**
 * Loads a model. Rejects with KV_MODEL_INVALID, KV_ABORTED, KV_INTERNAL when the thread has died, and what the system says where none can start.
 * @param file What the worker runs; for tests.
 */
export async function loadOnThread(request: LoadRequest, signal: AbortSignal | undefined, file = path.join(__dirname, 'loading-worker.js')): Promise<LoadedModel> {
  const aborted = (): Error => createError('KV_ABORTED', { operation: 'loading a model' }, { cause: signal?.reason });
  if (signal?.aborted === true) throw aborted();
  const worker = new Worker(file, { workerData: request });
  let abort = (): void => {};
  try {
    const answer = await new Promise<SentModel | SentError>((resolve, reject) => {
      let cause: unknown;
      abort = () => { reject(aborted()); };
      signal?.addEventListener('abort', abort, { once: true });
      worker.on('message', resolve);
      worker.on('error', (error) => { cause = error; });
      worker.on('exit', (exitCode) => { reject(endedError('loads a model', exitCode, cause)); });
    });
    if ('config' in answer) return received(answer);
    throw receivedError(answer);
  } finally {
    signal?.removeEventListener('abort', abort);
    await worker.terminate();
  }
}

/** What the worker loaded, with addresses of this thread's own mappings. Throws KV_MODEL_INVALID when a file has changed since. */
function received({ config, weights, files: sent, copiedFiles }: SentModel): LoadedModel {
  const files = sent.map((file) => WeightFile.received(file));
  const address = (data: bigint): bigint => files.map((file, index) => file.addressOf(data, sent[index]!)).find((found) => found !== undefined)!;
  const here = mapWeights({ ...weights, files }, (data) => typeof data === 'bigint' ? address(data) : data);
  return new LoadedModel(config, here, copiedFiles);
}
