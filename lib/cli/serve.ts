// `vkv serve`: a model's folder behind OpenAI's HTTP API. Loads the model into the reference engine, or its ONNX graph into onnxruntime, opens a cache for it, and serves
// until the process is told to end; then answers under way are finished. Prints its address, and errors that no client is told.

import { createRequire } from 'node:module';
import path = require('node:path');

import { Command, Option } from 'commander';

import { createError } from '../base/errors.js';
import { formatBytes, formatCount, formatNumber, printable } from '../base/format.js';
import { KvCache, OnlineScheduler, type DriverChoice, type Dtype, type Engine, type ModelShape } from '../index.js';
import { BackgroundTokenizer, LlamaEngine, LlamaModel, LlamaTokenizer, type CopiedFile, type CopyReason } from '../llama/index.js';
import { OnnxDecoder, readModelFolder } from '../onnx/index.js';
import { ModelServer, sessionPolicy } from '../server/index.js';
import { countFrom, dtypeFlag, pageSizeFlag, sizeFlag } from './flag-values.js';
import { modelPath } from './shipped.js';

interface ServeFlags {
  readonly model?: string;
  readonly onnx?: string;
  readonly name?: string;
  readonly host: string;
  readonly port: number;
  readonly slots: number;
  readonly maxTokens?: number;
  readonly memoryBytes: number;
  readonly pageBytes?: number;
  readonly weights: 'mapped' | 'copied' | 'int8';
  readonly kvDtype?: Dtype;
  readonly results: 'fast' | 'exact';
  readonly driver: DriverChoice;
  readonly threads?: number;
  readonly maxWaiting: number;
  readonly prefillTokensPerStep?: number;
  readonly apiKey?: readonly string[];
  readonly maxBodyBytes?: number;
  readonly deadlineMs?: number;
  readonly graceMs?: number;
}

/** Optional packages that serving needs. */
const packages = ['hono', '@hono/node-server', '@huggingface/tokenizers', '@huggingface/jinja'];

/** Tokens of a sequence where neither the model nor a flag says less. */
const mostTokens = 32_768;

export function serveCommand(): Command {
  const count = countFrom(1);
  return new Command('serve')
    .description("a model from a Hugging Face folder behind OpenAI's HTTP API")
    .option('--model <folder>', 'config.json, tokenizer.json and safetensors of a Llama, Mistral, Qwen2 or Qwen3; or a .gguf file; or storyteller, which comes with the package', modelPath)
    .option('--onnx <folder>', 'instead: a decoder in ONNX with its tokenizer.json, computed by the onnxruntime-node that is installed; or the .onnx file', modelPath)
    .option('--name <name>', "the model's name for clients (default: that of the folder or file)")
    .option('--host <address>', 'where to listen; 0.0.0.0: also for other machines', '127.0.0.1')
    .option('--port <number>', 'the port; 0: any that is free', countFrom(0), 8_000)
    .option('--slots <count>', 'sequences that run at a time', count, 16)
    .option('--max-tokens <count>', `tokens of a prompt and its answer (default: the model's limit, at most ${formatNumber(mostTokens)})`, count)
    .option('--memory-bytes <size>', 'memory for K and V', sizeFlag, 2 ** 30)
    .option('--page-bytes <size>', "bytes of a physical page (default: the driver's smallest)", pageSizeFlag)
    .addOption(new Option('--weights <kind>', 'mapped: shared with other processes; copied; int8: made while loading, for the CPU; half the bytes, and answers change a little')
      .choices(['mapped', 'copied', 'int8']).default('mapped'))
    .option('--kv-dtype <name>', "float32, float16 or bfloat16: type of K and V (default: the weights'). A narrow one saves memory and moves answers: " +
      'bfloat16 moved logits by up to 0.08 of 11 on a real shape, and changed a likeliest token', dtypeFlag)
    .addOption(new Option('--results <kind>', 'exact: answers do not depend, to the bit, on what is cached or answered beside them; on the CPU, and slower with long texts')
      .choices(['fast', 'exact']).default('fast'))
    .addOption(new Option('--driver <kind>', 'where to compute').choices(['auto', 'cuda', 'host']).default('auto'))
    .option('--threads <count>', 'threads on the CPU', count)
    .option('--max-waiting <count>', 'requests that may wait; more are turned away with 429', count, 256)
    .option('--prefill-tokens-per-step <count>', 'prompt tokens in a step', count)
    .option('--api-key <key>', 'a key that clients must send; again for another (default: VKV_API_KEY, else none)', (key: string, before: readonly string[] = []) => [...before, key])
    .option('--max-body-bytes <size>', 'bytes of a request', sizeFlag)
    .option('--deadline-ms <ms>', 'ms that an answer may take (default: 600,000)', count)
    .option('--grace-ms <ms>', 'ms for answers under way when it is told to end (default: 30,000)', countFrom(0))
    .action(serve);
}

/** Throws KV_DEPENDENCY_MISSING, which names all that are missing, before a model is loaded. */
function checkPackages(): void {
  const { resolve } = createRequire(__filename);
  const missing = packages.filter((name) => {
    try {
      resolve(name);
      return false;
    } catch {
      return true;
    }
  });
  if (missing.length > 0) throw createError('KV_DEPENDENCY_MISSING', { dependency: missing.join(' '), purpose: 'serving a model' });
}

const copyReasons: Readonly<Record<CopyReason, string>> = {
  'written-just-now': 'it was written to just now',
  'time-ahead': "its time lies ahead of the machine's",
  'open-for-writing': 'something has it open for writing',
  'in-memory': 'its file system is in memory, where later changes would not be noticed',
  'refused': 'the system does not map it',
};

async function serve(flags: ServeFlags): Promise<void> {
  checkPackages();
  const key = process.env['VKV_API_KEY'];
  const apiKeys = flags.apiKey ?? (key === undefined || key === '' ? [] : [key]);
  const files = filesOf(flags);
  await using tokenizer = new BackgroundTokenizer({ tokenizer: new LlamaTokenizer(files.folder) });
  await using model = await (flags.onnx === undefined ? loadLlama(files.folder, flags) : openOnnx(flags.onnx, flags));
  using cache = new KvCache({
    model: model.shape, slots: flags.slots, maxTokens: flags.maxTokens ?? Math.min(model.maxTokens, mostTokens),
    memoryBudgetBytes: flags.memoryBytes, driver: model.driver, pageBytes: flags.pageBytes, prefixCache: { policy: sessionPolicy() },
  });
  using engine = model.engine(cache);
  const scheduler = new OnlineScheduler({ cache, engine, maxWaiting: flags.maxWaiting, prefillTokensPerStep: flags.prefillTokensPerStep });
  const maxTokens = longestText(cache);
  const modelName = flags.name ?? path.basename(path.resolve(files.given));
  await using server = new ModelServer({
    scheduler, tokenizer, modelName, maxTokens, apiKeys, stopTokens: [...new Set([...model.endTokens, ...tokenizer.endTokens])],
    maxBodyBytes: flags.maxBodyBytes, deadlineMs: flags.deadlineMs, graceMs: flags.graceMs,
  }, report);
  const told = new Promise<void>((resolve) => {
    const signals = ['SIGINT', 'SIGTERM'] as const;
    const end = (): void => {
      for (const signal of signals) process.off(signal, end); // a second one, of either kind, ends at once
      resolve();
    };
    for (const signal of signals) process.on(signal, end);
  });
  const url = await server.listen({ host: flags.host, port: flags.port });
  for (const { path: file, reason } of model.copiedFiles) {
    process.stderr.write(`${printable(file)} is copied, not shared with other processes: ${copyReasons[reason]}.\n`);
  }
  process.stdout.write(`${printable(modelName)} on ${engine.target}: ${formatCount('slot', flags.slots)}, ${formatNumber(maxTokens)} tokens each, ` +
    `${formatBytes(flags.memoryBytes)} for K and V\nListening at ${url}/v1${apiKeys.length === 0 ? ', without an API key' : ''}\nWatch it at ${url}/watch, or with \`vkv top ${url}\`\n`);
  await told;
  process.stderr.write('Ending: answers under way are finished. Once more ends at once.\n');
}

/** What was given, and where its tokenizer is. Throws KV_INVALID_OPTION unless one model was given, of the flags that go with its kind. */
function filesOf({ model, onnx, weights, results, driver }: ServeFlags): { readonly given: string; readonly folder: string } {
  if (model !== undefined && onnx === undefined) return { given: model, folder: model };
  if (model !== undefined || onnx === undefined) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'vkv serve', option: '--model', expected: model === undefined ? "a model's folder" : 'left out beside `--onnx`', received: model,
      ...model === undefined ? { hint: 'Or give `--onnx` a folder with a decoder in ONNX.' } : {},
    });
  }
  const only = (option: string, isGiven: boolean, received: string): void => {
    if (isGiven) throw createError('KV_INVALID_OPTION', { reason: 'range', owner: 'vkv serve', option, expected: 'left out beside `--onnx`', received });
  };
  only('--weights', weights !== 'mapped', weights);
  only('--results', results !== 'fast', results);
  only('--driver', driver === 'cuda', driver);
  return { given: onnx, folder: readModelFolder(onnx).folder };
}

/** A model as it is served, whichever computes it. */
interface ServedModel extends AsyncDisposable {
  readonly shape: ModelShape;
  readonly driver: DriverChoice;
  /** Tokens of a sequence. */
  readonly maxTokens: number;
  readonly endTokens: readonly number[];
  /** Files whose weights take memory of their own. */
  readonly copiedFiles: readonly CopiedFile[];
  readonly engine: (cache: KvCache) => Engine & Disposable & { readonly target: string };
}

async function loadLlama(folder: string, flags: ServeFlags): Promise<ServedModel> {
  const model = await LlamaModel.load(folder, { threads: flags.threads, weights: flags.weights });
  const { maxTokens, endTokens } = model.config;
  return {
    shape: model.shape(flags.kvDtype), driver: flags.driver, maxTokens, endTokens, copiedFiles: model.copiedFiles,
    engine: (cache) => new LlamaEngine({ model, cache, results: flags.results }),
    [Symbol.asyncDispose]: async () => { /* its engine gives the weights back */ },
  };
}

async function openOnnx(given: string, flags: ServeFlags): Promise<ServedModel> {
  const { file, maxTokens, endTokens } = readModelFolder(given);
  const decoder = await OnnxDecoder.open(file, { threads: flags.threads });
  return {
    shape: decoder.model({ dtype: flags.kvDtype }), driver: 'host', maxTokens: Math.min(maxTokens ?? mostTokens, decoder.maxTokens ?? mostTokens), endTokens, copiedFiles: [],
    engine: (cache) => {
      const engine = decoder.engine(cache);
      return {
        vocabularyTokens: engine.vocabularyTokens, prefill: (pass) => engine.prefill(pass), decode: (pass) => engine.decode(pass), target: decoder.target,
        [Symbol.dispose]: () => { /* the decoder is closed behind the cache's users */ },
      };
    },
    [Symbol.asyncDispose]: async () => { decoder.close(); },
  };
}

/** Tokens that a sequence can have: those that it has addresses for, as far as there is memory for them. */
function longestText({ layout, pool }: KvCache): number {
  return Math.min(layout.maxTokens, layout.tokensIn(Math.floor(pool.counts().budgetPages / layout.pagesPerRow)));
}

function report(error: unknown): void {
  const text = error instanceof Error ? error.stack ?? error.message : String(error);
  process.stderr.write(`${text.split('\n').map(printable).join('\n')}\n`);
}
