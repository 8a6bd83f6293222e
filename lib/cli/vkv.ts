#!/usr/bin/env node
// The `vkv` command: one file per subcommand; this one has version, help, errors and exit codes. When the reader of a pipe closes
// it (`vkv plan | head -1`), the command ends quietly.

import { Command } from 'commander';

import { packageVersion } from '../base/package.js';
import { infoCommand } from './info.js';
import { planCommand } from './plan.js';
import { quantizeCommand } from './quantize.js';
import { replayCommand } from './replay.js';
import { reportError } from './report-error.js';
import { serveCommand } from './serve.js';
import { storeCommand } from './store.js';
import { topCommand } from './top.js';

const commands = [planCommand(), replayCommand(), serveCommand(), quantizeCommand(), topCommand(), storeCommand(), infoCommand()];

async function main(): Promise<void> {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', endOnClosedPipe);
  const program = new Command('vkv')
    .description('A KV cache that is contiguous in virtual memory and paged in physical memory.')
    .version(packageVersion, '-V, --version', 'print the version');
  for (const command of commands) program.addCommand(command);
  for (const command of [program, ...commands, ...commands.flatMap((one) => one.commands)]) {
    // Errors are thrown to the one place below that prints them; help goes to stdout.
    command.exitOverride().configureOutput({ outputError: () => {} }).showSuggestionAfterError();
  }
  try {
    await program.parseAsync();
  } catch (error) {
    const command = commands.find((one) => one.name() === program.args[0]) ?? program;
    process.exitCode = reportError(error, { json: process.argv.includes('--json'), command });
  }
}

function endOnClosedPipe(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE') throw error;
  process.exit();
}

void main();
