// How a command ends badly: one line on stderr (or one JSON object with `--json`), no stack, and the exit code: 2 when
// the command line was wrong, 1 when the work failed. VKV_DEBUG=1 adds the stack. Nothing else prints errors.

import { CommanderError, type Command } from 'commander';

import { isKvError } from '../base/errors.js';
import { printable, printableJson } from '../base/format.js';
import { inFlagWords } from './flag-words.js';

interface Failure {
  readonly code: string;
  readonly message: string;
  readonly recovery?: string;
  readonly details?: unknown;
}

/**
 * Prints `error`, in the words of the command that was typed, and returns the exit code. Help and version end this way too in
 * commander: printed already.
 */
export function reportError(error: unknown, { json, command }: { readonly json: boolean; readonly command: Command }): number {
  if (error instanceof CommanderError && (error.exitCode === 0 || error.code === 'commander.help')) {
    return error.exitCode === 0 ? 0 : 2;
  }
  const failure = failureOf(error, command);
  const text = json ? printableJson({ error: failure }) : printable(`vkv: ${failure.code}: ${failure.message}`);
  process.stderr.write(`${text}\n`);
  if (process.env['VKV_DEBUG'] && error instanceof Error) process.stderr.write(`${(error.stack ?? '').split('\n').map(printable).join('\n')}\n`);
  return isUsageError(error) ? 2 : 1;
}

function failureOf(error: unknown, command: Command): Failure {
  if (isKvError(error)) {
    const { code, message, recovery, details } = error;
    return { code, message: inFlagWords(message, command), recovery, details };
  }
  if (error instanceof CommanderError) {
    const code = error.code === 'commander.unknownOption' ? 'KV_UNKNOWN_OPTION' : 'KV_INVALID_OPTION';
    return { code, message: sentence(error.message), recovery: 'fix' };
  }
  const { code, message } = (error instanceof Error ? error : new Error(String(error))) as NodeJS.ErrnoException;
  return { code: code ?? 'KV_INTERNAL', message: message.split('\n', 1)[0]! };
}

/** A command line that cannot be meant; the built-in classes are mistakes in a call, which here came from flags. */
function isUsageError(error: unknown): boolean {
  if (error instanceof CommanderError) return true;
  return isKvError(error) && (error instanceof TypeError || error instanceof RangeError);
}

/** `error: unknown option '--x'` and, on a line of its own, `(Did you mean --y?)`: as sentences, without the prefix. */
function sentence(message: string): string {
  const text = message.replace(/^error: /, '').replace(/\s*\n\((.*)\)$/, '. $1').trim();
  const capital = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?]$/.test(capital) ? capital : `${capital}.`;
}
