// Runs the built command in a child process and returns what it printed and how it ended.

import { spawnSync } from 'node:child_process';
import * as path from 'node:path';

const bin = path.resolve(__dirname, '..', '..', 'dist', 'cli', 'vkv.js');

export interface Ended {
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export function runVkv(parameters: readonly string[], environment: NodeJS.ProcessEnv = {}, folder = process.cwd()): Ended {
  const { status, stdout, stderr } = spawnSync(process.execPath, [bin, ...parameters], {
    encoding: 'utf8', cwd: folder, env: { ...process.env, NO_COLOR: '1', ...environment },
  });
  return { exitCode: status, stdout, stderr };
}

/** The same, for `--json`: what was printed, parsed. */
export function runVkvJson(parameters: readonly string[], environment?: NodeJS.ProcessEnv): Record<string, unknown> {
  const { exitCode, stdout, stderr } = runVkv([...parameters, '--json'], environment);
  if (exitCode !== 0) throw new Error(`vkv ${parameters.join(' ')} ended with ${exitCode}: ${stderr}`);
  return JSON.parse(stdout) as Record<string, unknown>;
}

/** For a shell pipeline: the command as one would type it. */
export const vkvInShell = `${JSON.stringify(process.execPath)} ${JSON.stringify(bin)}`;
