// `vkv replay`: runs a serving trace through real virtual memory. Reads flags, calls replay() of lib/replay, and prints its result:
// a progress bar, a table or JSON, a report. Exit code 1 when the verification failed or no request could be served, 130 after
// Ctrl-C.

import { existsSync } from 'node:fs';
import path = require('node:path');

import { Command, InvalidArgumentError, Option } from 'commander';

import { createError } from '../base/errors.js';
import { printable, printableJson } from '../base/format.js';

import { arrivalModes, type ArrivalMode } from '../replay/replay-loop.js';
import { DEFAULT_MAX_TOKENS, DEFAULT_MODEL, evictionPolicyNames, replay, type EvictionPolicyName } from '../replay/replay.js';
import { Reporter, reportFormatOf } from '../replay/report.js';
import type { ReplayTrace } from '../replay/request-feed.js';
import { isAllRefused, isSound } from '../replay/result.js';
import { TraceReader } from '../replay/trace-reader.js';
import type { TraceFormat } from '../replay/trace-request.js';
import { verifyModes, type VerifyMode } from '../replay/verification.js';
import { Workload } from '../replay/workload.js';
import type { Tier } from '../index.js';
import { MockDevice } from '../testing.js';
import { countFrom, sizeFlag, tiersFlag, tiersHelp } from './flag-values.js';
import { addLayoutOptions, addModelOptions, selectModel, type LayoutFlags, type ModelFlags } from './model-options.js';
import { ReplayBar, summaryText } from './replay-output.js';
import { shippedPath } from './shipped.js';

const driverKinds = ['auto', 'cuda', 'host', 'mock'] as const;

interface ReplayFlags extends ModelFlags, LayoutFlags {
  readonly generate?: number | true;
  readonly format: TraceFormat | 'auto';
  readonly skipInvalid?: true;
  readonly limit?: number;
  readonly maxBatch: number;
  readonly prefillTokensPerStep: number;
  readonly memoryBytes?: number;
  readonly driver: (typeof driverKinds)[number];
  readonly prefixCache?: true;
  readonly policy: EvictionPolicyName;
  readonly poolRows?: number;
  readonly tiers?: readonly Tier[];
  readonly prefillRate: number;
  readonly promptOnly?: true;
  readonly arrivals: ArrivalMode;
  readonly stepMs: number;
  readonly verify: VerifyMode;
  readonly seed: number;
  readonly report?: string;
  readonly json?: true;
}

/** Implied by flags of the prefix cache. */
const withPrefixCache = { prefixCache: true };

const GENERATED_REQUESTS = 5_000;
const MOCK_MEMORY_BYTES = 10 * 2 ** 30;
/** Enough for the longest generated request (16,384 + 2,048 tokens): a server with a 32K context. */
const GENERATED_MAX_TOKENS = 32_768;

export function replayCommand(): Command {
  const count = countFrom(1);
  const command = new Command('replay')
    .description('run a serving trace through real virtual memory and check every byte')
    .argument('[file]', 'Azure CSV or Mooncake JSONL, also gzipped; - for stdin; or conversations or requests, which come with the package')
    .option('--generate [requests]', 'make a workload instead of reading one (default: 5,000 requests)', count)
    .addOption(choice('--format <name>', 'format of the file', ['auto', 'azure', 'mooncake']))
    .option('--skip-invalid', 'skip and count invalid lines; otherwise the first ends the replay')
    .option('--limit <requests>', 'stop after this many requests', count);
  return addLayoutOptions(addModelOptions(command), {
    pageBytes: "the driver's", maxTokens: "the config's own limit, else 196,608, or 32,768 with --generate",
  })
    .option('--max-batch <sequences>', 'most sequences at once: slots', count, 64)
    .option('--prefill-tokens-per-step <tokens>', 'most prompt tokens in one forward pass', count, 2_048)
    .addOption(choice('--driver <kind>', 'memory to use; auto is cuda if there is a GPU, else host', driverKinds))
    .option('--memory-bytes <size>', 'physical memory for pages (default: 8 GiB, or 80 % of what is free)', sizeFlag)
    .option('--prefix-cache', 'keep the K and V of requests, and compute common prefixes once')
    .addOption(choice('--policy <name>', 'which rows the prefix cache evicts first', evictionPolicyNames)
      .implies(withPrefixCache))
    .addOption(new Option('--pool-rows <rows>', 'rows of finished requests to keep for their prefixes (default: all)')
      .argParser(countFrom(0)).implies(withPrefixCache))
    .addOption(new Option('--tiers <tiers>', tiersHelp).argParser(tiersFlag).implies(withPrefixCache))
    .option('--prefill-rate <tokens>', 'prompt tokens a second that the engine is taken to compute, for --tiers', count, 10_000)
    .option('--prompt-only', 'release every request after its prefill, without decoding')
    .addOption(choice('--arrivals <mode>', 'saturate: admit as soon as memory allows; trace: at the times of the trace', arrivalModes))
    .option('--step-ms <ms>', 'length of a forward pass on the clock of --arrivals trace', milliseconds, 25)
    .addOption(choice('--verify <mode>', 'tokens to write and read back', verifyModes, 'sampled'))
    .option('--seed <number>', 'chooses the generated workload, patterns and samples', countFrom(0), 1)
    .option('--report <file>', 'draw memory over time to an .html or .svg file', reportFile)
    .option('--json', 'print JSON, sizes in bytes')
    .action(runReplay);
}

/** An option with a few values; the first is the default unless `byDefault` names another. */
function choice(flags: string, description: string, values: readonly string[], byDefault = values[0]): Option {
  return new Option(flags, description).choices(values).default(byDefault);
}

const everyToken = 'every layer is replayed as if it kept all tokens, since the prefix cache cannot resume others yet; '
  + 'without `--prefix-cache` windows and chunks are replayed as such';

async function runReplay(file: string | undefined, flags: ReplayFlags, command: Command): Promise<void> {
  refuseIgnored(command, file, flags);
  const reporter = flags.report === undefined ? undefined : await Reporter.load(); // a missing package is reported before the work
  const trace = openTrace(file, flags);
  const { model: selected, maxTokens, notes } = selectModel(flags, {
    name: 'Llama-3.2-1B', model: DEFAULT_MODEL, maxTokens: file === undefined ? GENERATED_MAX_TOKENS : DEFAULT_MAX_TOKENS,
  });
  for (const note of notes) process.stderr.write(`Note: ${printable(note)}.\n`);
  const keepsAll = flags.prefixCache && selected.layerSets !== undefined;
  if (keepsAll) process.stderr.write(`Note: ${everyToken}.\n`);
  const model = keepsAll ? { ...selected, layerSets: undefined } : selected;
  const device = flags.driver === 'mock' ? openMock(flags) : undefined;
  const stop = new AbortController();
  const interrupt = (): void => stop.abort();
  process.once('SIGINT', interrupt); // a second Ctrl-C ends at once
  const bar = new ReplayBar();
  try {
    const outcome = await replay({
      trace, model, maxTokens, driver: flags.driver === 'mock' ? device?.driver : flags.driver,
      layout: flags.layout, pageBytes: flags.pageBytes, maxBatch: flags.maxBatch, memoryBytes: flags.memoryBytes,
      prefillTokensPerStep: flags.prefillTokensPerStep, prefixCache: flags.prefixCache ? 'on' : 'off', policy: flags.policy,
      poolRows: flags.poolRows, tiers: flags.tiers, prefillTokensPerSecond: flags.prefillRate, promptOnly: flags.promptOnly === true, arrivals: flags.arrivals, stepMs: flags.stepMs,
      verify: flags.verify, limit: flags.limit, seed: flags.seed,
      signal: stop.signal, onProgress: (progress) => bar.update(progress),
    });
    bar.stop();
    device?.assertNoLeaks();
    const { result } = outcome;
    process.stdout.write(`${flags.json ? printableJson(result) : summaryText(result)}\n`);
    if (reporter !== undefined) {
      await reporter.write(outcome, flags.report!);
      process.stderr.write(`Report: ${flags.report!}\n`);
    }
    if (result.interrupted) process.exitCode = 130;
    if (!isSound(result) || isAllRefused(result)) process.exitCode = 1;
  } finally {
    bar.stop();
    device?.close();
    process.off('SIGINT', interrupt);
  }
}

/** Throws KV_INVALID_OPTION for a flag that would have no effect. */
function refuseIgnored(command: Command, file: string | undefined, { arrivals, generate, tiers }: ReplayFlags): void {
  const refuse = (option: keyof ReplayFlags, flag: string, expected: string): void => {
    if (command.getOptionValueSource(option) !== 'cli') return;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'vkv replay', option: flag, expected, received: command.getOptionValue(option),
    });
  };
  if (arrivals !== 'trace') refuse('stepMs', '--step-ms', 'given with `--arrivals trace` only');
  if (tiers === undefined) refuse('prefillRate', '--prefill-rate', 'given with `--tiers` only');
  if (file !== undefined || generate === undefined) return;
  refuse('format', '--format', 'left out with `--generate`, which reads no file');
  refuse('skipInvalid', '--skip-invalid', 'left out with `--generate`, which reads no file');
}

function openTrace(file: string | undefined, { generate, format, skipInvalid, seed }: ReplayFlags): ReplayTrace {
  if ((file === undefined) === (generate === undefined)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'vkv replay', option: 'file', received: file,
      expected: file === undefined ? 'given, or `--generate` in its place' : 'left out with `--generate`',
      hint: file === undefined ? 'Run `vkv replay --generate` for a workload that needs no file.' : 'Give one of the two.',
    });
  }
  if (file !== undefined) return new TraceReader({ source: shippedPath(file), format, skipInvalid: skipInvalid === true });
  return new Workload({ requests: generate === true ? GENERATED_REQUESTS : generate!, seed });
}

/** Makes a simulated device with memory to spare. Without verification its pages have no bytes and are only counted, unless tiers keep them. */
function openMock({ memoryBytes = MOCK_MEMORY_BYTES, pageBytes = 2 ** 21, verify, tiers }: ReplayFlags): MockDevice {
  return new MockDevice({ memoryBytes, granularityBytes: pageBytes, backing: verify === 'off' && tiers === undefined ? 'none' : 'real' });
}

function milliseconds(text: string): number {
  const value = Number(text);
  if (!(value > 0) || !Number.isFinite(value)) throw new InvalidArgumentError('It must be a number above 0.');
  return value;
}

function reportFile(text: string): string {
  if (reportFormatOf(text) === undefined) throw new InvalidArgumentError('It must end in .html or .svg.');
  if (!existsSync(path.dirname(path.resolve(text)))) throw new InvalidArgumentError('Its folder does not exist.');
  return text;
}
