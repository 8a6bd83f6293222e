// The program behind the command `vkv`: one file per subcommand; this one has version, help, errors and exit codes. Leaves streams and
// signals of the process as they were, so that it can be called any number of times.

import { Command } from 'commander';

import { packageVersion } from '../base/package.js';
import { buildKernelsCommand } from './build-kernels.js';
import { infoCommand } from './info.js';
import { planCommand } from './plan.js';
import { quantizeCommand } from './quantize.js';
import { replayCommand } from './replay.js';
import { reportError } from './report-error.js';
import { serveCommand } from './serve.js';
import { storeCommand } from './store.js';
import { topCommand } from './top.js';

/** Runs the command of `words`, those behind `vkv`. Prints what there is to print, errors too, and sets `process.exitCode`. */
export async function runProgram(words: readonly string[]): Promise<void> {
  // Made for each call: commander keeps what it parsed.
  const commands = [planCommand(), replayCommand(), serveCommand(), quantizeCommand(), topCommand(), storeCommand(), buildKernelsCommand(), infoCommand()];
  const program = new Command('vkv')
    .description('A KV cache that is contiguous in virtual memory and paged in physical memory.')
    .version(packageVersion, '-V, --version', 'print the version');
  for (const command of commands) program.addCommand(command);
  for (const command of [program, ...commands, ...commands.flatMap((one) => one.commands)]) {
    // Errors are thrown to the one place below that prints them; help goes to stdout, wrapped beside the longest flag too.
    command.exitOverride().configureOutput({ outputError: () => {} }).configureHelp({ minWidthToWrap: 30 })
      .showSuggestionAfterError();
  }
  try {
    await program.parseAsync(words, { from: 'user' });
  } catch (error) {
    const command = commands.find((one) => one.name() === program.args[0]) ?? program;
    process.exitCode = reportError(error, { json: words.includes('--json'), command });
  }
}
