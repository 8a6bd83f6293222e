// `vkv serve`: a model's folder behind OpenAI's HTTP API. Loads the model into the reference engine, or its ONNX graph into onnxruntime, opens a cache for it, and serves
// until the process is told to end; then answers under way are finished. Prints its address, and errors that no client is told.

import { createRequire } from 'node:module';
import path = require('node:path');

import { Command } from 'commander';

import { createError } from '../base/errors.js';
import { formatBytes, formatCount, formatNumber, printable } from '../base/format.js';
import { KvCache, OnlineScheduler, type DriverChoice, type Engine, type ModelShape } from '../index.js';
import { BackgroundTokenizer, LlamaEngine, LlamaModel, LlamaTokenizer, type CopiedFile, type CopyReason } from '../llama/index.js';
import { OnnxDecoder, readModelFolder } from '../onnx/index.js';
import { ModelServer, sessionPolicy } from '../server/index.js';
import { readApiKeys } from './api-keys-file.js';
import { describeServe, mostTokens, tiersOf, type ServeFlags } from './serve-flags.js';

/** Optional packages that serving needs. */
const packages = ['hono', '@hono/node-server', '@huggingface/tokenizers', '@huggingface/jinja'];

export function serveCommand(): Command {
  return describeServe(new Command('serve')).action(serve);
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

const endSignals = ['SIGINT', 'SIGTERM'] as const;

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
  const given = [...flags.apiKey ?? [], ...flags.apiKeys === undefined ? [] : readApiKeys(flags.apiKeys)];
  const apiKeys = given.length > 0 || key === undefined || key === '' ? given : [key];
  const files = filesOf(flags);
  await using tokenizer = new BackgroundTokenizer({ tokenizer: new LlamaTokenizer(files.folder) });
  await using model = await (flags.onnx === undefined ? loadLlama(files.folder, flags) : openOnnx(flags.onnx, flags));
  const tiers = tiersOf(flags);
  await using cache = new KvCache({ // its end stores what tiers were not offered yet
    model: model.shape, slots: flags.slots, maxTokens: flags.maxTokens ?? Math.min(model.maxTokens, mostTokens),
    memoryBudgetBytes: flags.memoryBytes, layout: flags.layout, driver: model.driver, pageBytes: flags.pageBytes,
    prefixCache: { policy: sessionPolicy(), tiers, modelId: flags.modelId },
  });
  await cache.prefixes.tiers?.ready();
  using engine = model.engine(cache);
  const scheduler = new OnlineScheduler({
    cache, engine, maxWaiting: flags.maxWaiting, prefillTokensPerStep: flags.prefillTokensPerStep,
    passTimeoutMs: flags.passTimeoutMs,
  });
  const maxTokens = longestText(cache);
  const modelName = flags.name ?? path.basename(path.resolve(files.given));
  await using server = new ModelServer({
    scheduler, tokenizer, modelName, maxTokens, apiKeys, stopTokens: [...new Set([...model.endTokens, ...tokenizer.endTokens])],
    maxUrgency: flags.maxUrgency, allowedHosts: flags.allowedHost, corsOrigins: flags.cors,
    maxConnections: flags.maxConnections,
    maxConnectionsPerAddress: flags.maxConnectionsPerAddress, keepAliveMs: flags.keepAliveMs,
    parameters: flags.parameters,
    maxBodyBytes: flags.maxBodyBytes, deadlineMs: flags.deadlineMs, graceMs: flags.graceMs,
  }, report);
  using told = new ToldToEnd();
  const url = await server.listen({ host: flags.host, port: flags.port }).catch((error: unknown) => { throw listenError(error, flags); });
  for (const { path: file, reason } of model.copiedFiles) {
    process.stderr.write(`${printable(file)} is copied, not shared with other processes: ${copyReasons[reason]}.\n`);
  }
  process.stdout.write(`${printable(modelName)} on ${engine.target}: ${formatCount('slot', flags.slots)}, ${formatNumber(maxTokens)} tokens each, ` +
    `${formatBytes(flags.memoryBytes)} for K and V\nLayout: ${cache.layout.kind}, ${formatNumber(cache.layout.tokensPerRow, 2)} tokens a row, pages of ${formatBytes(cache.layout.pageBytes)}\nListening at ${url}/v1${apiKeys.length === 0 ? ', without an API key' : ''}\nWatch it at ${url}/watch, or with \`vkv top ${url}\`\n`);
  await told.ended;
  process.stderr.write(`Ending: answers under way are finished${tiers.length > 0 ? ', and what is cached is stored' : ''}. Once more ends at once.\n`);
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

/** The error of a port that another process has, or that this one may not open, in words of the flags; else the error itself. */
function listenError(error: unknown, { host, port }: ServeFlags): unknown {
  const { code } = error as NodeJS.ErrnoException;
  const problem = code === 'EADDRINUSE' ? 'another process listens there' : code === 'EACCES' ? 'this process may not' : undefined;
  if (problem === undefined) return error;
  const message = `Cannot listen at ${host}, port ${port}: ${problem}. Give \`--port\` another; with 0 it takes any that is free.`;
  return Object.assign(new Error(message, { cause: error }), { code });
}

/** Hears when the process is told to end; a second signal, of either kind, ends at once. */
class ToldToEnd {
  readonly ended: Promise<void>;
  #resolve: () => void = () => {};
  readonly #hear = (): void => {
    this[Symbol.dispose]();
    this.#resolve();
  };

  constructor() {
    this.ended = new Promise((resolve) => { this.#resolve = resolve; });
    for (const signal of endSignals) process.on(signal, this.#hear);
  }

  [Symbol.dispose](): void {
    for (const signal of endSignals) process.off(signal, this.#hear);
  }
}

function report(error: unknown): void {
  const text = error instanceof Error ? error.stack ?? error.message : String(error);
  process.stderr.write(`${text.split('\n').map(printable).join('\n')}\n`);
}
