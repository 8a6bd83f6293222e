#!/usr/bin/env node
// The `vkv` command: runs program.ts on the words of the command line. When the reader of a pipe closes it (`vkv plan | head -1`), the
// command ends quietly.

import { runProgram } from './program.js';

for (const stream of [process.stdout, process.stderr]) stream.on('error', endOnClosedPipe);

function endOnClosedPipe(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE') throw error;
  process.exit();
}

void runProgram(process.argv.slice(2));
