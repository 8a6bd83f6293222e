// What both programs are asked to do, and what they say of it. Each runs in a process of its own; the loads are the same.

import { privateBytes } from '../private-bytes.js';
import { shape } from './random-gguf.js';

/** Prompts that are answered greedily. */
export interface Load {
  readonly prompts: readonly (readonly number[])[];
  readonly newTokens: number;
  /** Whether they begin alike: each program does with that what serves it best. */
  readonly isShared: boolean;
}

/** How llama.cpp is used, which has several ways to do a load. */
export interface Setting {
  readonly flashAttention: boolean;
  /** `free`: a sequence goes on as soon as its token is there; `common`: when all have theirs, so that each batch has all of them. */
  readonly steps: 'free' | 'common';
  /** `turns`: one sequence answers all and keeps what they share; `copies`: each has a sequence, which reads the state behind what they share from a file. */
  readonly shared: 'turns' | 'copies';
}

/** What the parent sends; `setting` is for llama.cpp only. */
export interface Question {
  readonly load: Load;
  readonly setting: Setting;
}

export interface Answer {
  /** From asking until all prompts are answered. */
  readonly seconds: number;
  /** Of each prompt. */
  readonly tokens: readonly (readonly number[])[];
  /** Of a timer of 10 ms: the longest time from one call to the next. */
  readonly longestGapMs: number;
  /** Memory that only this process has, and has written to. */
  readonly privateBytes: number;
}

/** One that reads this file, named on its command line; it is asked and answers by messages. */
export interface Program {
  /** Answers of all prompts, in their order. */
  answer(load: Load, setting: Setting): Promise<readonly (readonly number[])[]>;
}

/** Tokens of a text that no other number has. */
export function text(number: number, tokens: number): number[] {
  return Array.from({ length: tokens }, (_, at) => 256 + (number * 7_919 + (at + 1) * (101 + (number * 31) % 611)) % (shape.vocabularyTokens - 256));
}

/** Answers messages until the parent ends. */
export function serve(program: Program): void {
  process.on('message', ({ load, setting }: Question) => {
    void (async () => {
      let [longestGapMs, lastMs] = [0, performance.now()];
      const timer = setInterval(() => {
        longestGapMs = Math.max(longestGapMs, performance.now() - lastMs);
        lastMs = performance.now();
      }, 10);
      const startMs = performance.now();
      const answers = await program.answer(load, setting);
      const seconds = (performance.now() - startMs) / 1e3;
      clearInterval(timer);
      longestGapMs = Math.max(longestGapMs, performance.now() - lastMs);
      process.send!({ seconds, tokens: answers, longestGapMs, privateBytes: privateBytes() } satisfies Answer);
    })();
  });
  process.once('disconnect', () => { process.exit(0); });
  process.send!('ready');
}
