// Shared by the examples with flags: numbers are checked where they are read, a mistake or a failure is one line without a
// stack (exit code 2 for a wrong command line, 1 for a failure), and a closed pipe (`| head -1`) ends them quietly.

import { Command, InvalidArgumentError } from 'commander';

/** A command whose `parse` ends the process with 2 when the command line is wrong. */
export function exampleCommand(name: string, description: string): Command {
  return new Command(`npm run example -- ${name}`).usage('[flags]').description(description).allowExcessArguments(false)
    .showSuggestionAfterError().exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : 2));
}

/** Reads a flag's whole number from `min` to `max`. */
export function wholeNumber(min: number, max = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => read(text, min, max, 'a whole number', Number.isSafeInteger);
}

/** Reads a flag's number from `min` to `max`. */
export function anyNumber(min: number, max = Infinity): (text: string) => number {
  return (text) => read(text, min, max, 'a number', Number.isFinite);
}

/** Runs an example to its end. */
export function runExample(main: () => void | Promise<void>): void {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', endOnClosedPipe);
  Promise.resolve().then(main).catch((error: unknown) => {
    console.error(error instanceof Error ? error.message : error);
    if (process.env['VKV_DEBUG']) console.error(error);
    process.exitCode = 1;
  });
}

function read(text: string, min: number, max: number, kind: string, isRight: (value: number) => boolean): number {
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (isRight(value) && value >= min && value <= max) return value;
  const bounds = max === Infinity || max === Number.MAX_SAFE_INTEGER ? `at least ${min}` : `from ${min} to ${max}`;
  throw new InvalidArgumentError(`It must be ${kind}, ${bounds}.`);
}

function endOnClosedPipe(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE') throw error;
  process.exit();
}
