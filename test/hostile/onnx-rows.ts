// Rows of the hostile table for decoders in ONNX and for transformers.js. Graphs are opened where the example has
// installed onnxruntime-node; transformers.js is looked for where it is not, so that nothing is put in the place of its
// sessions.

import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { isKvError, KvCache, type Driver } from 'virtual-kv';
import { OnnxDecoder, readModelFolder, type OnnxDecoderOptions, type OnnxModelOptions } from 'virtual-kv/onnx';
import { install, type InstallOptions } from 'virtual-kv/transformers';

import { libraryOf } from '#internal/onnx/library.js';
import { madeDecoder } from '../onnx/made-decoder.js';
import type { Call, Rows } from './table.js';
import type { World } from './world.js';

const call = (run: (...given: never[]) => unknown, ...meant: readonly unknown[]): Call => ({ run, meant });
const runtime = path.resolve(__dirname, '../../examples/onnxruntime/node_modules/onnxruntime-node');
const hasRuntime = existsSync(runtime);

let folder: string | undefined;

/** A model's folder, removed when the process ends. */
function modelFolder(): string {
  if (folder !== undefined) return folder;
  folder = mkdtempSync(path.join(tmpdir(), 'vkv-hostile-onnx-'));
  writeFileSync(path.join(folder, 'model.onnx'), madeDecoder({ hidden: 32, vocabulary: 32, positions: 64 }).bytes);
  process.on('exit', () => {
    rmSync(folder!, { recursive: true, force: true });
  });
  return folder;
}

const options = (driver?: Driver): OnnxDecoderOptions => ({
  threads: 1,
  driver,
  library: hasRuntime ? libraryOf(runtime) : '/nowhere/libonnxruntime.so',
});

/** Opens a decoder, where there is an onnxruntime. */
async function open(world: World, ...given: Parameters<typeof OnnxDecoder.open>): Promise<OnnxDecoder | undefined> {
  try {
    const decoder = await OnnxDecoder.open(...given);
    world.closable.push(decoder);
    return decoder;
  } catch (error) {
    if (hasRuntime || !isKvError(error, 'KV_ONNX_UNAVAILABLE')) throw error;
    return undefined;
  }
}

/** Reads its options, and finds no transformers.js. */
function installNowhere(given: InstallOptions): void {
  try {
    install(given);
  } catch (error) {
    if (!isKvError(error, 'KV_DEPENDENCY_MISSING')) throw error;
  }
}

const decoderOf = (world: World): Promise<OnnxDecoder | undefined> =>
  open(world, path.join(modelFolder(), 'model.onnx'), options());

/** Of the graph's shape. */
function cacheOf(world: World): KvCache {
  const model = { layers: 2, kvHeads: 2, headDim: 16, dtype: 'float32' } as const;
  const cache = new KvCache({
    model,
    slots: 2,
    maxTokens: 64,
    memoryBudgetBytes: 2 ** 22,
    pageBytes: 65_536,
    driver: world.driver,
  });
  world.closable.push(cache);
  return cache;
}

export const onnxRows: Readonly<Record<string, Rows>> = {
  OnnxDecoder: {
    close: null,
    open: (world) =>
      call(
        (...given: Parameters<typeof OnnxDecoder.open>) => open(world, ...given),
        path.join(modelFolder(), 'model.onnx'),
        options(world.driver),
      ),
    model: (world) =>
      call(async (given: OnnxModelOptions) => (await decoderOf(world))?.model(given), { dtype: 'float16', slides: true }),
    engine: (world) => call(async (given: KvCache) => (await decoderOf(world))?.engine(given), cacheOf(world)),
  },
  readModelFolder: { call: () => call(readModelFolder, modelFolder()) },
  install: {
    call: () =>
      call(installNowhere, {
        memoryBudgetBytes: 2 ** 24,
        slots: 2,
        maxTokens: 64,
        dtype: 'float16',
        threads: 1,
        prefillTokensPerStep: 8,
        waitMs: 0,
        pageBytes: 65_536,
        prefixCache: 'off',
        from: '/nowhere',
      }),
  },
};
