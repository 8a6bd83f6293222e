// Prints the error that ends a command: one line on stderr (or one JSON object with `--json`), and returns the exit code: 2 when the
// command line was wrong, 1 when the work failed. VKV_DEBUG=1 adds the stack. Only this file prints errors. Messages name options of
// the API; here they name the flags of the command instead.

import { CommanderError, type Command } from 'commander';

import { isKvError } from '../base/errors.js';
import { printable, printableJson } from '../base/format.js';

interface Failure {
  readonly code: string;
  readonly message: string;
  readonly recovery?: string;
  readonly details?: unknown;
}

/** Prints `error` with the flags of `command`, and returns the exit code. Commander throws help and version too, already printed. */
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
    const message = sentence(error.message);
    return { code, message: isUnlike(error) ? `${message} \`${nameOf(command)} --help\` lists the commands.` : message, recovery: 'fix' };
  }
  const { code, message } = (error instanceof Error ? error : new Error(String(error))) as NodeJS.ErrnoException;
  return { code: code ?? 'KV_INTERNAL', message: message.split('\n', 1)[0]! };
}

/** Whether it names a command that there is not, and that is like none. */
function isUnlike({ code, message }: CommanderError): boolean {
  return code === 'commander.unknownCommand' && !message.includes('Did you mean');
}

/** `vkv`, `vkv store`. */
function nameOf(command: Command): string {
  return command.parent === null ? command.name() : `${nameOf(command.parent)} ${command.name()}`;
}

/** Whether the command line was wrong: the built-in classes are mistakes in a call, and its arguments came from flags. */
function isUsageError(error: unknown): boolean {
  if (error instanceof CommanderError) return true;
  return isKvError(error) && (error instanceof TypeError || error instanceof RangeError);
}

/** Turns `error: unknown option '--x'` and, on a line of its own, `(Did you mean --y?)` into sentences without the prefix. */
function sentence(message: string): string {
  const text = message.replace(/^error: /, '').replace(/\s*\n\((.*)\)$/, '. $1').trim();
  const capital = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?]$/.test(capital) ? capital : `${capital}.`;
}

/** Options whose flag has another name; of several, the first that the command has. */
const otherNames: Readonly<Record<string, readonly string[]>> = {
  memoryBudgetBytes: ['memoryBytes'],
  slots: ['maxBatch'],
  tensor: ['tensorParallel'],
  pipeline: ['pipelineParallel'],
};

/** An option in backticks, as a path and perhaps with a value: `memoryBudgetBytes`, `model.kvHeads`, `driver: 'host'`; not `config.json`. */
const optionWords = /`((?:(?:model|prefixCache)\.)?(?:parallel\.)?[A-Za-z_$][\w$]*)(?:: ([^`]+))?`/g;

/** Replaces options by flags of `command`. A path becomes the flag of its last name; an option without a flag stays. */
export function inFlagWords(message: string, command: Command): string {
  const flags = new Map(command.options.map((option) => [option.attributeName(), option.long ?? option.flags]));
  return message.replace(optionWords, (words, path: string, value: string | undefined) => {
    const name = path.split('.').at(-1)!;
    const flag = [name, ...otherNames[name] ?? []].map((candidate) => flags.get(candidate)).find((found) => found !== undefined);
    if (flag === undefined) return words;
    return value === undefined ? `\`${flag}\`` : `\`${flag} ${value.replace(/^'(.*)'$/, '$1')}\``;
  });
}
