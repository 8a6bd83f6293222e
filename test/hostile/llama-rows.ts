// Rows of the hostile table for the reference engine and its tokenizers: a small model on the CPU, loaded once.

import * as path from 'node:path';

import * as kv from 'virtual-kv';
import { BackgroundTokenizer, LlamaEngine, LlamaModel, LlamaTokenizer, readLlamaConfig, TextPieces, type LlamaPass } from 'virtual-kv/llama';

import type { TokenizerLibrary } from '#internal/llama/tokenizer.js';
import type { Call, Rows } from './table.js';
import type { World } from './world.js';

const call = (run: (...given: never[]) => unknown, ...meant: readonly unknown[]): Call => ({ run, meant });
const folder = path.resolve(__dirname, '../../examples/llama/storyteller');
const messages = [{ role: 'user', content: 'A fox.' }];

function once<T>(make: () => T): () => T {
  let made: T | undefined;
  return () => (made ??= make());
}

const model = once(() => new LlamaModel(folder, { threads: 1 }));

/** The tokenizer library, which needs seconds for a word of 100,000 letters: it gets their beginning. */
function shortened(name: string): unknown {
  const library = require(name) as { readonly Tokenizer?: TokenizerLibrary['Tokenizer'] }; // eslint-disable-line @typescript-eslint/no-require-imports -- as the package loads it
  if (library.Tokenizer === undefined) return library;
  return {
    Tokenizer: class extends library.Tokenizer {
      override encode(text: string, options: { readonly add_special_tokens: boolean }): { readonly ids: number[] } {
        return super.encode(text.slice(0, 100), options);
      }
    },
  };
}

const tokenizer = once(() => new LlamaTokenizer(folder, shortened));
const background = once(() => new BackgroundTokenizer({ tokenizer: tokenizer(), minBackgroundCharacters: 2 ** 30 })); // its thread never starts

interface Scene {
  readonly cache: kv.KvCache;
  readonly sequence: kv.Sequence;
  readonly engine: LlamaEngine;
}

const scenes = new WeakMap<World, Scene>();

/** A cache of the model's with a prepared batch, once for each world; and an engine. */
function sceneOf(world: World): Scene {
  const known = scenes.get(world);
  if (known !== undefined) return known;
  const cache = new kv.KvCache({
    model: model().shape('float32'), slots: 2, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver: world.driver, growth: kv.onDemand(), mapper: 'off',
  });
  world.closable.push(cache);
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 3);
  cache.prepare(batch);
  const engine = new LlamaEngine({ model: model(), cache });
  world.closable.push(engine);
  const scene = { cache, sequence, engine };
  scenes.set(world, scene);
  return scene;
}

/** A pass of some tokens; given rows stand for the first. */
const passOf = ({ sequence }: Scene, tokens: number) => ({
  length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(0), tokenCounts: Int32Array.of(tokens),
  tokens: new Int32Array(tokens).fill(1), wantsLogits: Uint8Array.of(1), inputs: [[{ at: 0, rows: new Float32Array(model().config.hidden) }]],
  sequences: [sequence], signal: new AbortController().signal,
});

export const llamaRows: Readonly<Record<string, Rows>> = {
  LlamaModel: {
    keep: null, drop: null, check: null, acquirePlace: null, releasePlace: null, // for the engine
    new: () => call((...given: ConstructorParameters<typeof LlamaModel>) => new LlamaModel(...given), folder, {
      weights: 'mapped', threads: 1, instructions: 'auto', cublas: 'off', stream: 0n, workspaceBytes: 1,
    }),
    load: () => call((...given: Parameters<typeof LlamaModel.load>) => LlamaModel.load(...given), folder, {
      weights: 'mapped', threads: 1, signal: new AbortController().signal,
    }),
    shape: () => call((dtype: kv.Dtype) => model().shape(dtype), 'float32'),
  },
  LlamaEngine: {
    close: null,
    new: (world) => call((options: never) => {
      const engine = new LlamaEngine(options);
      world.closable.push(engine);
      return engine;
    }, { model: model(), cache: sceneOf(world).cache, decoding: 'queued', passes: 'awaited', results: 'exact', hidden: 'hidden' }),
    prefill: (world) => {
      const scene = sceneOf(world);
      return call((pass: LlamaPass) => scene.engine.prefill(pass), passOf(scene, 3));
    },
    decode: (world) => {
      const scene = sceneOf(world);
      return call((pass: LlamaPass) => scene.engine.decode(pass), passOf(scene, 1));
    },
  },
  LlamaTokenizer: {
    pieces: null, stream: null,
    new: () => call((given: string) => new LlamaTokenizer(given), folder),
    encode: () => call(tokenizer().encode.bind(tokenizer()), 'A fox.', { specialTokens: 'parse' }),
    encodeChat: () => call(tokenizer().encodeChat.bind(tokenizer()), messages, {}), // variables are the template library's: it reads all of an array
    decode: () => call(tokenizer().decode.bind(tokenizer()), [1, 2, 3]),
    bytesOf: () => call(tokenizer().bytesOf.bind(tokenizer()), 5),
  },
  BackgroundTokenizer: {
    close: null, pieces: null,
    new: (world) => call((options: never) => {
      const made = new BackgroundTokenizer(options);
      world.closable.push(made);
      return made;
    }, { tokenizer: tokenizer(), minBackgroundCharacters: 4 }),
    encode: () => call(background().encode.bind(background()), 'A fox.', { specialTokens: 'parse', signal: new AbortController().signal }),
    encodeChat: () => call(background().encodeChat.bind(background()), messages, {}, { signal: new AbortController().signal }),
    decode: () => call(background().decode.bind(background()), [1, 2, 3]),
    bytesOf: () => call(background().bytesOf.bind(background()), 5),
  },
  TextPieces: {
    end: null,
    new: () => call((decode: () => string) => new TextPieces(decode), () => 'x'),
    push: () => {
      const pieces = tokenizer().pieces();
      return call(pieces.push.bind(pieces), 5);
    },
  },
  readLlamaConfig: { call: () => call(readLlamaConfig, folder) },
  givenTo: { call: null }, // for an engine, of a pass that a scheduler made
};
