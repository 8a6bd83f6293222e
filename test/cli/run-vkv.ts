// Runs the built command in a child process and returns what it printed and how it ended.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
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

/** Runs `vkv serve` at any free port, asks which models it has, and whatever `ask` asks, and tells it to end. */
export async function serveOnce<T = undefined>(
  parameters: readonly string[], ask: (url: string) => Promise<T | undefined> = () => Promise.resolve(undefined),
): Promise<Ended & { readonly models: readonly string[]; readonly answer: T | undefined }> {
  const child = spawn(process.execPath, [bin, 'serve', ...parameters, '--port', '0'], {
    cwd: path.resolve(bin, '..', '..', '..'), env: { ...process.env, VKV_API_KEY: '' }, stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  const exit = once(child, 'exit') as Promise<[number | null]>;
  child.stderr.on('data', (chunk: Buffer) => { stderr += chunk.toString(); });
  const url = await new Promise<string>((resolve, reject) => {
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk.toString();
      const found = /Listening at (\S+)\/v1/.exec(stdout)?.[1];
      if (found !== undefined) resolve(found);
    });
    child.once('exit', (code) => { reject(new Error(`vkv serve ended with ${code}: ${stderr}`)); });
  });
  const { data } = await (await fetch(`${url}/v1/models`)).json() as { data: { id: string }[] };
  const answer = await ask(url);
  child.kill('SIGTERM');
  const [exitCode] = await exit;
  return { exitCode, stdout, stderr, models: data.map(({ id }) => id), answer };
}

/** `runVkv` with `--json`: what was printed, parsed. */
export function runVkvJson(parameters: readonly string[], environment?: NodeJS.ProcessEnv): Record<string, unknown> {
  const { exitCode, stdout, stderr } = runVkv([...parameters, '--json'], environment);
  if (exitCode !== 0) throw new Error(`vkv ${parameters.join(' ')} ended with ${exitCode}: ${stderr}`);
  return JSON.parse(stdout) as Record<string, unknown>;
}

/** For a shell pipeline: the command as one would type it. */
export const vkvInShell = `${JSON.stringify(process.execPath)} ${JSON.stringify(bin)}`;
