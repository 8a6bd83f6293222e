// `vkv top URL`: what the live page shows, in a terminal: once where the output is a pipe or a file, again and again on a terminal, until
// Ctrl-C or q. Asks the server for the same small state as the page; a server that cannot be asked is an error of this package.

import { setTimeout as sleep } from 'node:timers/promises';

import { Command } from 'commander';

import { EitherSignal } from '../base/either-signal.js';
import { createError } from '../base/errors.js';
import { formatNumber, printable, printableJson } from '../base/format.js';
import type { ServerState } from '../server/watch-state.js';
import { countFrom } from './flag-values.js';
import { topScreen } from './top-screen.js';

interface TopFlags {
  readonly apiKey?: string;
  readonly everyMs: number;
  readonly json?: boolean;
}

export function topCommand(): Command {
  return new Command('top')
    .description('watch a server: slots, sharing, memory, hit rates and times')
    .argument('[url]', 'the server of `vkv serve`', 'http://127.0.0.1:8000')
    .option('--api-key <key>', 'its key, if it has one (default: VKV_API_KEY)')
    .option('--every-ms <ms>', 'ms from one look to the next, on a terminal', countFrom(100), 1_000)
    .option('--json', 'print its state as JSON, once')
    .action(top);
}

async function top(url: string, { apiKey = process.env['VKV_API_KEY'], everyMs, json }: TopFlags): Promise<void> {
  const place = stateUrl(url);
  const state = await ask(place, apiKey);
  if (json) process.stdout.write(`${printableJson(state)}\n`);
  else if (process.stdout.isTTY) await watch(place, apiKey, everyMs, state);
  else process.stdout.write(`${topScreen(state, { columns: 100, lines: Infinity }).join('\n')}\n`);
}

/** The address of the state, of whatever address of the server was given. Throws KV_INVALID_OPTION. */
function stateUrl(text: string): URL {
  const whole = /^[a-z][a-z+.-]*:\/\//i.test(text) ? text : `http://${text}`;
  const url = URL.canParse(whole) ? new URL(whole) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'vkv top', option: 'url', expected: 'the address of a server, such as http://127.0.0.1:8000', received: text,
    });
  }
  url.pathname = `${url.pathname.replace(/\/(v1|watch)?\/*$/, '')}/watch/state`;
  url.search = url.hash = '';
  return url;
}

/** Throws KV_SERVER_UNREACHABLE, and KV_REQUEST_INVALID where a key is missing or another is wanted. */
async function ask(url: URL, apiKey: string | undefined, end?: AbortSignal): Promise<ServerState> {
  const unreachable = (problem: string, cause?: unknown): Error => createError('KV_SERVER_UNREACHABLE', { url: url.origin, problem }, { cause });
  const either = new EitherSignal(AbortSignal.timeout(10_000), end);
  let response: Response;
  let body: unknown;
  try {
    response = await fetch(url, { headers: apiKey ? { authorization: `Bearer ${apiKey}` } : {}, signal: either.signal });
    body = await response.json().catch(() => undefined);
  } catch (cause) {
    const { code } = ((cause as Error).cause ?? {}) as NodeJS.ErrnoException;
    throw unreachable((cause as Error).name === 'TimeoutError' ? 'it did not answer within 10 seconds' : code ?? (cause as Error).message, cause);
  } finally {
    either.forget();
  }
  if (response.status === 401) {
    throw createError('KV_REQUEST_INVALID', { reason: 'unauthorized', problem: apiKey ? 'its API key is not known' : 'it has no API key', hint: 'Give `--api-key`, or set VKV_API_KEY.' });
  }
  if (!isState(body)) throw unreachable(`what answers there, with status ${formatNumber(response.status)}, shows no state of virtual-kv`);
  return body;
}

function isState(body: unknown): body is ServerState {
  return typeof body === 'object' && body !== null && 'cache' in body && 'recent' in body && 'requests' in body;
}

const enter = '\u001B[?1049h\u001B[?25l';
const leave = '\u001B[?25h\u001B[?1049l';

/** Draws over and over, on the terminal's second screen; the first comes back as it was. */
async function watch(url: URL, apiKey: string | undefined, everyMs: number, first: ServerState): Promise<void> {
  const { stdout, stdin } = process;
  const end = new AbortController();
  const stop = (): void => { end.abort(); };
  const onKey = (chunk: Buffer): void => { if (chunk.includes(0x71) || chunk.includes(0x03)) stop(); }; // q, Ctrl-C
  const restore = (): void => { stdout.write(leave); };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, stop);
  process.once('exit', restore);
  if (stdin.isTTY) {
    stdin.setRawMode(true);
    stdin.on('data', onKey);
  }
  let state = first;
  let problem: string | undefined;
  const draw = (): void => {
    const { columns = 80, rows = 24 } = stdout;
    const lines = topScreen(state, { columns, lines: rows - 1, problem });
    stdout.write(`\u001B[H${lines.map((line) => `${line}\u001B[K`).join('\n')}\u001B[J`);
  };
  stdout.write(enter);
  stdout.on('resize', draw);
  try {
    for (draw(); await rest(everyMs, end.signal); draw()) {
      try {
        state = await ask(url, apiKey, end.signal);
        problem = undefined;
      } catch (error) {
        problem = printable((error as Error).message);
      }
    }
  } finally {
    stdout.off('resize', draw);
    process.off('exit', restore);
    if (stdin.isTTY) {
      stdin.off('data', onKey);
      stdin.setRawMode(false);
      stdin.pause();
    }
    restore();
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.off(signal, stop);
  }
}

/** Waits; false when it was ended. */
async function rest(ms: number, signal: AbortSignal): Promise<boolean> {
  await sleep(ms, undefined, { signal }).catch(() => { /* ended */ });
  return !signal.aborted;
}
