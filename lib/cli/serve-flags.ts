// The flags of `vkv serve`: what they mean and how they are parsed.

import { InvalidArgumentError, Option, type Command } from 'commander';

import { formatNumber } from '../base/format.js';
import {
  diskTier, hostTier, redisTier, type DriverChoice, type Dtype, type LayoutKind, type Tier,
} from '../index.js';
import { countFrom, dtypeFlag, pageSizeFlag, sizeFlag } from './flag-values.js';
import { layoutOption } from './model-options.js';
import { modelPath } from './shipped.js';

/** As commander parses them; an absent flag is undefined. */
export interface ServeFlags {
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
  readonly apiKeys?: string;
  readonly maxUrgency?: number;
  readonly allowedHost?: readonly string[];
  readonly cors?: readonly string[];
  readonly maxConnections?: number;
  readonly maxConnectionsPerAddress?: number;
  readonly keepAliveMs?: number;
  readonly passTimeoutMs: number;
  readonly parameters: 'lenient' | 'strict';
  readonly layout: LayoutKind | 'auto';
  readonly hostTier?: number;
  readonly disk?: { readonly directory: string; readonly bytes: number };
  readonly redis?: string;
  readonly modelId?: string;
  readonly maxBodyBytes?: number;
  readonly deadlineMs?: number;
  readonly graceMs?: number;
}

/** Tokens of a sequence where neither the model nor a flag says less. */
export const mostTokens = 32_768;

/** Adds the flags to the command. */
export function describeServe(command: Command): Command {
  const count = countFrom(1);
  return command
    .description("serve a model from a Hugging Face folder behind OpenAI's HTTP API")
    .option(
      '--model <folder>',
      'config.json, tokenizer.json and safetensors of a Llama, Mistral, Qwen or Gemma; or a .gguf file; or storyteller, ' +
        'which comes with the package', modelPath
    )
    .option(
      '--onnx <folder>',
      'instead: a decoder in ONNX with its tokenizer.json, computed by the onnxruntime-node that is installed; or the ' +
        '.onnx file', modelPath
    )
    .option('--name <name>', "the model's name for clients (default: that of the folder or file)")
    .option('--host <address>', 'where to listen; 0.0.0.0: also for other machines', '127.0.0.1')
    .option('--port <number>', 'the port; 0: any that is free', countFrom(0), 8_000)
    .option('--slots <count>', 'sequences that run at a time', count, 16)
    .option(
      '--max-tokens <count>',
      `tokens of a prompt and its answer (default: the model's limit, at most ${formatNumber(mostTokens)})`, count,
    )
    .addOption(new Option('--memory-bytes <size>', 'memory for K and V').argParser(sizeFlag).default(2 ** 30, '1 GiB'))
    .option(
      '--page-bytes <size>',
      "bytes of a physical page (default: the driver's, 2 MiB; on the CPU less, from 64 KiB, where `--layout auto` " +
        'finds no rows short and small enough in those)', pageSizeFlag,
    )
    .addOption(new Option('--weights <kind>', 'mapped: shared with other processes; copied; int8: on the CPU, made while loading: half the bytes, and answers change a little')
      .choices(['mapped', 'copied', 'int8']).default('mapped'))
    .option('--kv-dtype <name>', "float32, float16 or bfloat16: type of K and V (default: the weights'). A narrow one saves memory and moves answers: " +
      'bfloat16 moved logits by up to 0.08 of 11 on a real shape, and changed a likeliest token', dtypeFlag)
    .addOption(new Option('--results <kind>', 'exact: answers do not depend, to the bit, on what is cached or answered beside them; on the CPU, and slower with long texts')
      .choices(['fast', 'exact']).default('fast'))
    .addOption(new Option('--driver <kind>', 'where to compute').choices(['auto', 'cuda', 'host']).default('auto'))
    .option('--threads <count>', 'threads on the CPU', count)
    .option('--max-waiting <count>', 'requests that may wait; more are turned away with 429', count, 256)
    .option('--prefill-tokens-per-step <count>', 'prompt tokens in a step', count)
    .option(
      '--api-key <key>',
      'a key that clients must send, a tenant of its own; again for another (default: VKV_API_KEY, else none)', several,
    )
    .option(
      '--api-keys <file>',
      'keys of clients: a line for each, KEY, KEY TENANT or KEY TENANT URGENCY, the most urgent that its requests can be',
    )
    .option(
      '--max-urgency <number>', 'the most urgent that a request can be, 0 to 255 (default: 0, all are alike)',
      countFrom(0),
    )
    .option(
      '--allowed-host <name>', 'a name that a proxy on this machine passes on as Host; again for another; *: any',
      several,
    )
    .option(
      '--cors <origin>', 'pages that may use it from a browser, such as https://app.example; again for another; *: any',
      several,
    )
    .option('--max-connections <count>', 'connections at a time (default: 1,024)', count)
    .option('--max-connections-per-address <count>', 'of these from one address (default: half of them)', count)
    .option(
      '--keep-alive-ms <ms>', 'ms that an idle connection is kept: longer than proxies keep theirs (default: 100,000)',
      count,
    )
    .addOption(new Option(
      '--pass-timeout-ms <ms>', 'ms after which a pass of the model is given up, and the server is not ready',
    ).argParser(count).default(120_000, '120,000'))
    .addOption(new Option('--parameters <kind>', 'parameters of a request that the server does not know. lenient: ignored, ' +
      'and named in the header x-ignored-parameters; strict: refused')
      .choices(['lenient', 'strict']).default('lenient'))
    .addOption(layoutOption())
    .option('--host-tier <size>', "keep text that the device has no room for in this much of the process's memory", sizeFlag)
    .option(
      '--disk <directory=size>', 'keep it in this much of a folder, also for the next start, as /var/cache/kv=200GB',
      diskFlag,
    )
    .option(
      '--redis <url>', 'keep it in a Redis or Valkey, for other servers of the model, too; redis://:PASSWORD@HOST:PORT',
    )
    .option(
      '--model-id <name>',
      "names the weights and their revision in --disk and --redis (default: a digest of the model's; needed with --onnx)",
    )
    .option('--max-body-bytes <size>', 'bytes of a request', sizeFlag)
    .option('--deadline-ms <ms>', 'ms that an answer may take (default: 600,000)', count)
    .option('--grace-ms <ms>', 'ms that running answers have when the server is told to end (default: 30,000)', countFrom(0));
}

/** A flag that may be given several times. */
function several(value: string, before: readonly string[] = []): readonly string[] {
  return [...before, value];
}

/** Parses `DIR=SIZE`. */
function diskFlag(text: string): NonNullable<ServeFlags['disk']> {
  const [, directory, size] = /^(.+)=([^=]+)$/.exec(text) ?? [];
  if (directory === undefined) {
    throw new InvalidArgumentError('It must be a folder and a size, such as /var/cache/kv=1TB.');
  }
  return { directory, bytes: sizeFlag(size!) };
}

/** The tiers of the flags, the fastest first. Throws what their functions throw. */
export function tiersOf(
  { hostTier: hostBytes, disk, redis }: Pick<ServeFlags, 'hostTier' | 'disk' | 'redis'>,
): readonly Tier[] {
  return [
    ...hostBytes === undefined ? [] : [hostTier({ bytes: hostBytes })],
    ...disk === undefined ? [] : [diskTier(disk)],
    ...redis === undefined ? [] : [redisTier({ url: redis, required: true })],
  ];
}
