// Submission: from what an HTTP request asks for to requests of the scheduler: all limits that need no tokens are checked first, then the
// prompts are tokenized, then every choice is submitted, or none.

import { createError, isKvError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import type { TokenStream } from '../index.js';
import { Answer } from './answer.js';
import type { ApiParameters, ApiRequest, CompletionKind } from './api-request.js';
import { Completion } from './completion.js';
import { Logprobs } from './logprobs.js';
import { readPromptTokens } from './prompt-tokens.js';
import { checkBiasedTokens, samplerOf } from './sampling-parameters.js';
import type { ReadServerOptions } from './server-options.js';
import { Sessions } from './sessions.js';

/** One prompt's place in its request. */
interface Started {
  /** Of its first answer. */
  readonly choice: number;
  /** Ms of the deadline that tokenizing took. */
  readonly spentMs: number;
  readonly signal: AbortSignal;
}

export class Submission {
  readonly #options: ReadServerOptions;
  readonly #sessions = new Sessions();
  /** Of requests whose prompts are being tokenized: they wait, too. */
  #tokenizedChoices = 0;

  constructor(options: ReadServerOptions) {
    this.#options = options;
  }

  /** Seconds after which a client that was turned away may find room: what the waiting requests take, from 1 to 60. */
  get retryAfterSeconds(): number {
    const { times, waitingRequests, runningRequests } = this.#options.scheduler;
    const meanMs = times.total.count === 0 ? 1_000 : times.total.sumMs / times.total.count;
    return Math.min(60, Math.max(1, Math.ceil(meanMs / 1e3 * waitingRequests / Math.max(1, runningRequests))));
  }

  /**
   * Submits what a request asks for. `signal`: the client has left. Rejects with what the request is refused for, and then nothing of it
   * was submitted.
   */
  async submit(kind: CompletionKind, { prompt, parameters }: ApiRequest, signal: AbortSignal): Promise<Completion> {
    const prompts = 'messages' in prompt ? [prompt.messages] : prompt.prompts;
    this.#check(prompts, parameters);
    const startMs = performance.now();
    const tokens = await this.#tokenize(prompts, parameters.n, signal);
    const letter = parameters.logprobs === undefined ? undefined : (await this.#encode('a', signal)).at(-1)!;
    const spentMs = performance.now() - startMs;
    const answers: Answer[] = [];
    const { tokenizer } = this.#options;
    try {
      for (const each of tokens) {
        for (const stream of this.#start(each, parameters, { choice: answers.length, spentMs, signal })) {
          const logprobs = letter === undefined ? undefined : new Logprobs({ kind, tokenizer, letter });
          answers.push(new Answer({ index: answers.length, stream, logprobs }));
        }
      }
    } catch (error) {
      for (const answer of answers) answer.cancel();
      throw isKvError(error, 'KV_QUEUE_FULL') ? this.#full() : error;
    }
    return new Completion({ // `created` is a date for the client, of the wall clock
      kind, answers, leaders: answers.filter(({ index }) => index % parameters.n === 0), modelName: this.#options.modelName,
      promptTokens: tokens.reduce((sum, { length }) => sum + length, 0), created: Math.floor(Date.now() / 1e3),
    });
  }

  /** What can be refused before anything is tokenized. */
  #check(prompts: readonly (string | readonly unknown[])[], parameters: ApiParameters): void {
    const { model, n } = parameters;
    const { modelName, maxChoices, maxPromptCharacters, scheduler } = this.#options;
    if (model !== undefined && model !== modelName) {
      throw createError('KV_REQUEST_INVALID', {
        reason: 'not-found', problem: `there is no model ${JSON.stringify(model.slice(0, 100))}`, hint: `Ask for ${JSON.stringify(modelName)}, or leave \`model\` out.`,
      });
    }
    checkBiasedTokens(parameters, scheduler.vocabularyTokens);
    const choices = n * prompts.length;
    if (choices > maxChoices) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'the server', option: 'n', expected: `at most ${formatNumber(maxChoices)} answers in all`, received: choices,
      });
    }
    for (const each of prompts) {
      const characters = charactersOf(each);
      if (characters <= maxPromptCharacters) continue;
      throw createError('KV_REQUEST_INVALID', {
        reason: 'too-large', problem: `its prompt has ${formatCount('character', characters)}; ${formatNumber(maxPromptCharacters)} are allowed`,
        hint: 'Send a shorter one.',
      });
    }
    if (this.#waitingChoices + choices > scheduler.maxWaiting) throw this.#full();
  }

  #full(): Error {
    const waiting = this.#waitingChoices;
    return createError('KV_REQUEST_INVALID', {
      reason: 'too-many', problem: `${formatCount('request', waiting)} ${waiting === 1 ? 'waits' : 'wait'} already`,
      hint: `Try again in about ${formatCount('second', this.retryAfterSeconds)}.`,
    });
  }

  get #waitingChoices(): number {
    return this.#options.scheduler.waitingRequests + this.#tokenizedChoices;
  }

  async #tokenize(prompts: readonly (string | readonly unknown[])[], n: number, signal: AbortSignal): Promise<(readonly number[])[]> {
    const choices = n * prompts.length;
    this.#tokenizedChoices += choices;
    try {
      const tokens: (readonly number[])[] = [];
      for (const each of prompts) tokens.push(await this.#encode(each, signal));
      return tokens;
    } finally {
      this.#tokenizedChoices -= choices;
    }
  }

  async #encode(prompt: string | readonly unknown[], signal: AbortSignal): Promise<readonly number[]> {
    const { tokenizer } = this.#options;
    if (typeof prompt === 'string') return notEmpty(await readPromptTokens(tokenizer.encode(prompt, { specialTokens: 'text', signal }), 'encode'), 'prompt');
    if (typeof prompt[0] !== 'object') return notEmpty(prompt as readonly number[], 'prompt');
    if (!tokenizer.hasChatTemplate) {
      throw createError('KV_NOT_SUPPORTED', { option: 'messages', problem: 'the model has no chat template', hint: 'Send a plain prompt to `/v1/completions`.' });
    }
    const tokens = tokenizer.encodeChat(prompt as Parameters<typeof tokenizer.encodeChat>[0], {}, { signal });
    return notEmpty(await readPromptTokens(tokens, 'encodeChat'), 'messages');
  }

  #start(tokens: readonly number[], parameters: ApiParameters, { choice, spentMs, signal }: Started): readonly TokenStream[] {
    const { scheduler, tokenizer, maxTokens, stopTokens, deadlineMs } = this.#options;
    const { user: tenant, cache_salt: salt, prompt_cache_key: key, session_hint: hint, urgency } = parameters;
    const most = maxTokens - tokens.length + 1; // the last token is never fed back
    const maxNewTokens = parameters.max_tokens ?? most;
    if (maxNewTokens > most || most < 1) throw createError('KV_LENGTH_OUT_OF_RANGE', { tokens: tokens.length + Math.max(1, maxNewTokens) - 1, maxTokens });
    const allowedMs = Math.min(parameters.deadline_ms ?? deadlineMs, deadlineMs);
    const leftMs = Math.ceil(allowedMs - spentMs);
    if (leftMs <= 0) throw createError('KV_DEADLINE_EXCEEDED', { deadlineMs: allowedMs, generatedTokens: 0, maxNewTokens });
    return scheduler.submitAnswers({
      tokens, maxNewTokens, stopTokens, tokenizer, stopStrings: parameters.stop, logProbabilities: parameters.logprobs, sampler: samplerOf(parameters, choice), tenant, salt, urgency, signal,
      priority: this.#sessions.levelOf(tenant, key, hint), deadlineMs: leftMs,
    }, parameters.n);
  }
}

function charactersOf(prompt: string | readonly unknown[]): number {
  if (typeof prompt === 'string') return prompt.length;
  return prompt.reduce<number>((sum, each) => sum + (typeof each === 'object' ? (each as { content: string }).content.length : 1), 0);
}

function notEmpty(tokens: readonly number[], option: string): readonly number[] {
  if (tokens.length > 0) return tokens;
  throw createError('KV_INVALID_OPTION', { reason: 'range', owner: 'the server', option, expected: 'a prompt of at least 1 token', received: tokens });
}
