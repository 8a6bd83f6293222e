// Runs the command, in this process unless a process is what a test is about: starting one takes ten times as long as most commands.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import * as path from 'node:path';

import { runProgram } from '#internal/cli/program.js';

const root = path.resolve(__dirname, '..', '..');
const bin = path.join(root, 'dist', 'cli', 'vkv.js');

export interface Ended {
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Refusal {
  readonly exitCode: number | null;
  readonly code: string;
  readonly message: string;
  readonly details?: Readonly<Record<string, unknown>>;
}

interface Call {
  readonly environment?: NodeJS.ProcessEnv | undefined;
  readonly folder?: string | undefined;
  /** Is given all that was printed so far. */
  readonly onStdout?: (stdout: string) => void;
  /** Sends SIGTERM when it is aborted. */
  readonly told?: AbortSignal;
}

type Run = (words: readonly string[], call: Call) => Promise<Ended>;

/** Calls the program. Until it has ended, the process's output, environment, folder, exit code and listeners are those of the call. */
const callHere: Run = async (words, { environment = {}, folder = process.cwd(), onStdout, told }) => {
  told?.addEventListener('abort', () => process.emit('SIGTERM'));
  const printed = { stdout: '', stderr: '' };
  const { exitCode } = process;
  const [folderBefore, valuesBefore] = [process.cwd(), Object.keys(environment).map((name) => [name, process.env[name]] as const)];
  const writesBefore = [process.stdout.write, process.stderr.write] as const;
  const listenersBefore = new Map(process.eventNames().map((event) => [event, process.rawListeners(event as NodeJS.Signals)]));
  const writeTo = (stream: keyof typeof printed): typeof process.stdout.write => (text: string | Uint8Array) => {
    printed[stream] += Buffer.from(text as string).toString();
    if (stream === 'stdout') onStdout?.(printed.stdout);
    return true;
  };
  try {
    [process.stdout.write, process.stderr.write] = [writeTo('stdout'), writeTo('stderr')];
    setEnvironment(Object.entries(environment));
    process.chdir(folder);
    process.exitCode = undefined;
    await runProgram(words);
    const left = (['SIGINT', 'SIGTERM'] as const).filter((signal) => process.listenerCount(signal) > (listenersBefore.get(signal)?.length ?? 0));
    if (left.length > 0) throw new Error(`vkv ${words.join(' ')} left listeners of ${left.join(' and ')}`);
    return { exitCode: Number(process.exitCode ?? 0), ...printed };
  } finally {
    [process.stdout.write, process.stderr.write] = writesBefore;
    setEnvironment(valuesBefore);
    process.chdir(folderBefore);
    process.exitCode = exitCode;
    for (const event of process.eventNames() as NodeJS.Signals[]) {
      for (const listener of process.rawListeners(event)) {
        if (listenersBefore.get(event)?.includes(listener) !== true) process.off(event, listener as () => void);
      }
    }
  }
};

function setEnvironment(values: readonly (readonly [string, string | undefined])[]): void {
  for (const [name, value] of values) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
}

const callInChild: Run = async (words, { environment, folder, onStdout, told }) => {
  const child = spawn(process.execPath, [bin, ...words], { cwd: folder, env: { ...process.env, ...environment }, stdio: ['ignore', 'pipe', 'pipe'] });
  told?.addEventListener('abort', () => child.kill('SIGTERM'));
  const printed = { stdout: '', stderr: '' };
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    printed.stdout += text;
    onStdout?.(printed.stdout);
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => { printed.stderr += text; });
  const [exitCode] = await once(child, 'close') as [number | null];
  return { exitCode, ...printed };
};

/** Runs `vkv` with these words in this process. One call at a time. */
export function runVkv(words: readonly string[], environment?: NodeJS.ProcessEnv, folder?: string): Promise<Ended> {
  return callHere(words, { environment, folder });
}

/** The same in a process of its own. */
export function spawnVkv(words: readonly string[], environment?: NodeJS.ProcessEnv, folder?: string): Promise<Ended> {
  return callInChild(words, { environment, folder });
}

/** `runVkv` with `--json`: what was printed, parsed. */
export async function runVkvJson(words: readonly string[], run = runVkv): Promise<Record<string, unknown>> {
  const { exitCode, stdout, stderr } = await run([...words, '--json']);
  if (exitCode !== 0) throw new Error(`vkv ${words.join(' ')} ended with ${exitCode}: ${stderr}`);
  return JSON.parse(stdout) as Record<string, unknown>;
}

/** Runs a command that fails, with `--json`: the error that it prints, and its exit code. An error of Commander's has no details. */
export async function refusalOf(...words: readonly string[]): Promise<Refusal> {
  const { exitCode, stdout, stderr } = await runVkv([...words, '--json']);
  if (stdout !== '') throw new Error(`vkv ${words.join(' ')} printed ${stdout}`);
  return { exitCode, ...(JSON.parse(stderr) as { error: Omit<Refusal, 'exitCode'> }).error };
}

/** Runs `vkv serve` at any free port, asks which models it has, and whatever `ask` asks, and tells it to end. */
export async function serveOnce<T = undefined>(
  words: readonly string[], ask: (url: string) => Promise<T | undefined> = () => Promise.resolve(undefined), isChild = false, folder = root,
): Promise<Ended & { readonly models: readonly string[]; readonly answer: T | undefined }> {
  const told = new AbortController();
  let ended: Promise<Ended> | undefined;
  const url = new Promise<string>((resolve, reject) => {
    const onStdout = (stdout: string): void => {
      const found = /Listening at (\S+)\/v1/.exec(stdout)?.[1];
      if (found !== undefined) resolve(found);
    };
    ended = (isChild ? callInChild : callHere)(['serve', ...words, '--port', '0'], { environment: { VKV_API_KEY: '' }, folder, onStdout, told: told.signal });
    ended.then(({ exitCode, stderr }) => { reject(new Error(`vkv serve ended with ${exitCode}: ${stderr}`)); }, reject);
  });
  try {
    const { data } = await (await fetch(`${await url}/v1/models`)).json() as { data: { id: string }[] };
    const answer = await ask(await url);
    told.abort();
    return { ...await ended!, models: data.map(({ id }) => id), answer };
  } finally {
    told.abort();
    await ended;
  }
}

/** For a shell pipeline: the command as one would type it. */
export const vkvInShell = `${JSON.stringify(process.execPath)} ${JSON.stringify(bin)}`;
