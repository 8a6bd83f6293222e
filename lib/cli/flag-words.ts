// Flag words: what a message says of the API's options, said of the flags of a command instead. Messages name options in
// backticks, as a path (`model.kvHeads`) and perhaps with a value (`driver: 'host'`); a path whose last name is a flag of the
// command becomes that flag. What the command has no flag for stays as it is.

import type { Command } from 'commander';

/** Options whose flag has another name; the first that the command has counts. */
const otherNames: Readonly<Record<string, readonly string[]>> = {
  memoryBudgetBytes: ['memoryBytes'],
  slots: ['maxBatch'],
  tensor: ['tensorParallel'],
  pipeline: ['pipelineParallel'],
};

/** `memoryBudgetBytes`, `model.kvHeads`, `driver: 'host'`; not `config.json`. */
const optionWords = /`((?:(?:model|prefixCache)\.)?(?:parallel\.)?[A-Za-z_$][\w$]*)(?:: ([^`]+))?`/g;

/** The message in the words of the command line: flags of `command` instead of option names. */
export function inFlagWords(message: string, command: Command): string {
  const flags = new Map(command.options.map((option) => [option.attributeName(), option.long ?? option.flags]));
  return message.replace(optionWords, (words, path: string, value: string | undefined) => {
    const name = path.split('.').at(-1)!;
    const flag = [name, ...otherNames[name] ?? []].map((candidate) => flags.get(candidate)).find((found) => found !== undefined);
    if (flag === undefined) return words;
    return value === undefined ? `\`${flag}\`` : `\`${flag} ${value.replace(/^'(.*)'$/, '$1')}\``;
  });
}
