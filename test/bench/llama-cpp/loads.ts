// What both programs are asked to do, and what they say of it. Each runs in a process of its own; the loads are the same.

import { readFileSync } from 'node:fs';

import { shape } from './random-gguf.js';

/** Prompts that are answered greedily. */
export interface Load {
  readonly prompts: readonly (readonly number[])[];
  readonly newTokens: number;
  /** Whether they begin alike: each program does with that what serves it best. */
  readonly isShared: boolean;
}

export interface Answer {
  /** From asking until all prompts are answered. */
  readonly seconds: number;
  /** Of the first prompt. */
  readonly tokens: readonly number[];
  /** Of a timer of 10 ms: the longest time from one call to the next. */
  readonly longestGapMs: number;
  /** Memory that only this process has, and has written to. */
  readonly privateBytes: number;
}

/** One that reads this file, named on its command line; it is asked and answers by messages. */
export interface Program {
  /** Answers of all prompts, in their order. */
  answer(load: Load): Promise<readonly (readonly number[])[]>;
}

/** Tokens of a text that no other number has. */
export function text(number: number, tokens: number): number[] {
  return Array.from({ length: tokens }, (_, at) => 256 + (number * 7_919 + (at + 1) * (101 + (number * 31) % 611)) % (shape.vocabularyTokens - 256));
}

/** Answers messages until the parent ends. */
export function serve(program: Program): void {
  process.on('message', (load: Load) => {
    void (async () => {
      let [longestGapMs, lastMs] = [0, performance.now()];
      const timer = setInterval(() => {
        longestGapMs = Math.max(longestGapMs, performance.now() - lastMs);
        lastMs = performance.now();
      }, 10);
      const startMs = performance.now();
      const answers = await program.answer(load);
      const seconds = (performance.now() - startMs) / 1e3;
      clearInterval(timer);
      longestGapMs = Math.max(longestGapMs, performance.now() - lastMs);
      process.send!({ seconds, tokens: answers[0]!, longestGapMs, privateBytes: privateBytes() } satisfies Answer);
    })();
  });
  process.once('disconnect', () => { process.exit(0); });
  process.send!('ready');
}

function privateBytes(): number {
  return 1_024 * Number(/^Private_Dirty: +(\d+) kB$/m.exec(readFileSync('/proc/self/smaps_rollup', 'latin1'))![1]);
}
