// The thread of a TokenizerThread: with the first job it makes the same tokenizer again, from the same files; then it
// answers each text, and each conversation, with its tokens, or with what failed.

import { parentPort, workerData } from 'node:worker_threads';

import { modelError, sentError, type SentError } from './model-error.js';
import { LlamaTokenizer, type TokenizerSource } from './tokenizer.js';
import type { ChatMessage, EncodeOptions } from './tokenizer-arguments.js';

/** What is to be tokenized. */
export type TokenizerJob =
  | { readonly text: string; readonly specialTokens: EncodeOptions['specialTokens'] }
  | { readonly messages: readonly ChatMessage[]; readonly values: Readonly<Record<string, unknown>> };

/** Of the job that the thread was given: its tokens, or what failed. */
export type TokenizerAnswer = { readonly tokens: Int32Array } | SentError;

function openTokenizer(): LlamaTokenizer {
  const { model, digest } = workerData as TokenizerSource;
  const tokenizer = new LlamaTokenizer(model);
  if (tokenizer.source.digest === digest) return tokenizer;
  throw modelError(`A file of the tokenizer of ${model} has changed since the tokenizer was loaded. Load it again.`);
}

let tokenizer: LlamaTokenizer | undefined;

function answerTo(job: TokenizerJob): TokenizerAnswer {
  try {
    tokenizer ??= openTokenizer();
    const tokens = 'text' in job
      ? tokenizer.encode(job.text, { specialTokens: job.specialTokens })
      : tokenizer.encodeChat(job.messages, job.values);
    return { tokens: Int32Array.from(tokens) };
  } catch (error) {
    return sentError(error);
  }
}

const port = parentPort!;
port.on('message', (job: TokenizerJob) => {
  const answer = answerTo(job);
  port.postMessage(answer, 'tokens' in answer ? [answer.tokens.buffer as ArrayBuffer] : []);
});
