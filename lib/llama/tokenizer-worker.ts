// The thread of a TokenizerThread: with the first text it makes the same tokenizer again, from the same files; then it answers each text
// with its tokens, or with what failed.

import { createRequire } from 'node:module';
import { parentPort, workerData } from 'node:worker_threads';

import { modelError, sentError, type SentError } from './model-error.js';
import { SpecialTokens } from './special-tokens.js';
import { readTokenizerFiles } from './tokenizer-files.js';
import { loadPackages, type SpelledText, type TokenizerSource } from './tokenizer.js';

/** Of the text that the thread was given: its tokens, or what failed. */
export type TokenizerAnswer = { readonly tokens: Int32Array } | SentError;

function openEncoder(): (spelled: SpelledText) => Int32Array {
  const { model, nonce, digest } = workerData as TokenizerSource;
  const files = readTokenizerFiles(model);
  if (files.digest !== digest) throw modelError(`${files.file}, or a file beside it, has changed since the tokenizer was loaded. Load it again.`);
  const [{ Tokenizer }] = loadPackages(createRequire(__filename));
  const tokenizer = new Tokenizer(new SpecialTokens(files.tokenizer, nonce).file, files.config);
  return ({ text, addsTokens }) => Int32Array.from(tokenizer.encode(text, { add_special_tokens: addsTokens }).ids);
}

let encode: ReturnType<typeof openEncoder> | undefined;

function answerTo(spelled: SpelledText): TokenizerAnswer {
  try {
    encode ??= openEncoder();
    return { tokens: encode(spelled) };
  } catch (error) {
    return sentError(error);
  }
}

const port = parentPort!;
port.on('message', (spelled: SpelledText) => {
  const answer = answerTo(spelled);
  port.postMessage(answer, 'tokens' in answer ? [answer.tokens.buffer as ArrayBuffer] : []);
});
