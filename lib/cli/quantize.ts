// `vkv quantize MODEL OUTPUT`: a model with int8 weights as a GGUF file of Q8_0, so that each start maps them instead of converting all again. A
// progress bar on a terminal, and a line at the end. Ctrl-C ends with 130 and leaves nothing.

import { existsSync } from 'node:fs';
import path = require('node:path');

import { Command } from 'commander';
import colours = require('picocolors');

import { createError, isKvError } from '../base/errors.js';
import { formatBytes, formatCount, printable, printableJson } from '../base/format.js';
import { writeInt8File } from '../llama/int8-file.js';
import { ProgressBar } from './progress-bar.js';
import { modelPath } from './shipped.js';

interface QuantizeFlags {
  readonly force?: true;
  readonly json?: true;
}

export function quantizeCommand(): Command {
  return new Command('quantize')
    .description('write a model with int8 weights to a file, which loads at once')
    .argument('<model>', 'the folder of a Llama, Mistral, Qwen2 or Qwen3; or a .gguf file of F32, F16 or BF16', modelPath)
    .argument('<output>', 'the .gguf file to write')
    .option('--force', 'write it also where there is a file of that name')
    .option('--json', 'print JSON, sizes in bytes')
    .action(quantize);
}

async function quantize(model: string, output: string, { force, json }: QuantizeFlags): Promise<void> {
  const refuse = (expected: string): never => {
    throw createError('KV_INVALID_OPTION', { reason: 'range', owner: 'vkv quantize', option: 'output', expected, received: output });
  };
  if (path.extname(output).toLowerCase() !== '.gguf') refuse('a file whose name ends in .gguf');
  if (force !== true && existsSync(output)) refuse('a file that is not there yet, unless `--force` is given');
  const stop = new AbortController();
  const interrupt = (): void => stop.abort();
  process.once('SIGINT', interrupt); // a second Ctrl-C ends at once
  const bar = process.stderr.isTTY ? new ProgressBar(process.stderr, colours.cyan, 'starting') : undefined;
  try {
    const written = await writeInt8File(model, output, {
      signal: stop.signal,
      onProgress: ({ bytes, totalBytes }) => bar?.update(bytes / totalBytes, `${formatBytes(bytes)} of ${formatBytes(totalBytes)}`),
    });
    bar?.stop();
    process.stdout.write(json ? `${printableJson({ output, ...written })}\n` : `${printable(output)}: ${formatCount('tensor', written.tensors)}, ${formatBytes(written.bytes)}\n`);
  } catch (error) {
    if (!isKvError(error, 'KV_ABORTED')) throw error;
    process.exitCode = 130;
  } finally {
    bar?.stop();
    process.off('SIGINT', interrupt);
  }
}
