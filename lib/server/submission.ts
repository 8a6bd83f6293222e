// Submission: from what an HTTP request asks for to requests of the scheduler: all limits that need no tokens are checked first, then the
// prompts are tokenized, then every choice is submitted, or none.

import { createError, isKvError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import type { TokenStream } from '../index.js';
import { Answer, type AnswerPart } from './answer.js';
import { tenantOf, type ApiClient } from './api-keys.js';
import type { ApiParameters, ApiRequest, CompletionKind, Conversation } from './api-request.js';
import { beginningWith, CallOpenings } from './call-openings.js';
import { ChatText } from './chat-text.js';
import { Completion } from './completion.js';
import { Logprobs } from './logprobs.js';
import { scorePrompt, type ServedRequest } from './prompt-scores.js';
import { readPromptTokens } from './prompt-tokens.js';
import { checkBiasedTokens, samplerOf, withoutEarly } from './sampling-parameters.js';
import type { ReadServerOptions } from './server-options.js';
import { Sessions } from './sessions.js';

/** Who asks. */
export interface Asking {
  readonly client: ApiClient;
  /** The client has left. */
  readonly signal: AbortSignal;
}

/** Where clients are told apart: those of one tenant cannot guess each other's text token by token. */
const cachedUnitTokens = 16;

type Prompt = string | readonly number[] | Conversation;

/** One prompt's place in its request. */
interface Started extends Asking {
  /** Of its first answer. */
  readonly choice: number;
  /** When its HTTP request had arrived. */
  readonly startMs: number;
  /** [function, token] of a call that its answers must begin with; undefined: they need not. */
  readonly openings: readonly (readonly number[])[] | undefined;
}

export class Submission {
  readonly #options: ReadServerOptions;
  readonly #sessions = new Sessions();
  readonly #callOpenings: CallOpenings;
  /** Of requests whose prompts are being tokenized: they wait, too. */
  #tokenizedChoices = 0;

  constructor(options: ReadServerOptions) {
    this.#options = options;
    this.#callOpenings = new CallOpenings(options.tokenizer);
  }

  /** Seconds after which a client that was turned away may find room: what the waiting requests take, from 1 to 60. */
  get retryAfterSeconds(): number {
    const { times, waitingRequests, runningRequests } = this.#options.scheduler;
    const meanMs = times.total.count === 0 ? 1_000 : times.total.sumMs / times.total.count;
    return Math.min(60, Math.max(1, Math.ceil(meanMs / 1e3 * waitingRequests / Math.max(1, runningRequests))));
  }

  /**
   * Submits what a request asks for. Rejects with what the request is refused for, and then nothing of it was
   * submitted.
   */
  async submit(kind: CompletionKind, { prompt, parameters }: ApiRequest, asking: Asking): Promise<Completion> {
    const { signal } = asking;
    const prompts = 'messages' in prompt ? [prompt] : prompt.prompts;
    this.#check(prompts, parameters);
    const startMs = performance.now();
    const tokens = await this.#tokenize(prompts, parameters.n, signal);
    const letter = parameters.logprobs === undefined ? undefined : (await this.#encode('a', signal)).at(-1)!;
    const { tokenizer } = this.#options;
    const openings = parameters.mustCall
      ? await this.#callOpenings.of(parameters.tools, this.#hasBegunThinking(tokens[0]!)) : undefined;
    // a function chooses alike in all answers of a request of the scheduler: then each answer has its own
    const together = parameters.mustCall || parameters.min_tokens > 0 ? 1 : parameters.n;
    const places = Array.from({ length: tokens.length * parameters.n / together }, (_, at) => at * together);
    const requests = places.map((choice) => this.#requestOf(
      tokens[Math.floor(choice / parameters.n)]!, parameters, { choice, startMs, openings, ...asking },
    ));
    const answers: Answer[] = [];
    const submitted: TokenStream[] = [];
    let echo: Promise<AnswerPart> | undefined;
    try {
      for (const request of requests) {
        const deadlineMs = this.#leftMs(parameters, startMs);
        const streams = this.#options.scheduler.submitAnswers({ ...request, deadlineMs }, together);
        submitted.push(...streams);
        if (parameters.echo && answers.length % parameters.n === 0) {
          echo = this.#echoOf(prompts[answers.length / parameters.n]!, request);
          echo.catch(() => {}); // it is told where the answer is read, which may have failed before
        }
        for (const stream of streams) {
          const logprobs = letter === undefined ? undefined : new Logprobs({ kind, tokenizer, letter });
          const chatText = kind === 'text' ? undefined
            : new ChatText({
              isThinking: this.#hasBegunThinking(request.tokens), tools: parameters.tools,
              mostCalls: parameters.mostCalls, mustCall: parameters.mustCall,
            });
          answers.push(new Answer({
            index: answers.length, stream, logprobs, chatText, echo, isEmpty: parameters.max_tokens === 0,
          }));
        }
      }
    } catch (error) {
      for (const stream of submitted) stream.cancel(); // also those that no answer was made of
      throw isKvError(error, 'KV_QUEUE_FULL') ? this.#full() : error;
    }
    return new Completion({ // `created` is a date for the client, of the wall clock
      cachedUnitTokens: asking.client.tenant === undefined ? 1 : cachedUnitTokens,
      kind, answers, leaders: answers.filter(({ index }) => index % parameters.n === 0), modelName: this.#options.modelName,
      promptTokens: tokens.reduce((sum, { length }) => sum + length, 0), created: Math.floor(Date.now() / 1e3),
    });
  }

  /** What can be refused before anything is tokenized. */
  #check(prompts: readonly Prompt[], parameters: ApiParameters): void {
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

  async #tokenize(prompts: readonly Prompt[], n: number, signal: AbortSignal): Promise<(readonly number[])[]> {
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

  async #encode(prompt: Prompt, signal: AbortSignal): Promise<readonly number[]> {
    const { tokenizer } = this.#options;
    if (typeof prompt === 'string') return notEmpty(await readPromptTokens(tokenizer.encode(prompt, { specialTokens: 'text', signal }), 'encode'), 'prompt');
    if (!('messages' in prompt)) return notEmpty(prompt, 'prompt');
    if (!tokenizer.hasChatTemplate) {
      throw createError('KV_NOT_SUPPORTED', { option: 'messages', problem: 'the model has no chat template', hint: 'Send a plain prompt to `/v1/completions`.' });
    }
    return notEmpty(await readPromptTokens(
      tokenizer.encodeChat(prompt.messages, prompt.values, { signal }), 'encodeChat',
    ), 'messages');
  }

  /** The request of a prompt's answers. Throws KV_LENGTH_OUT_OF_RANGE. */
  #requestOf(tokens: readonly number[], parameters: ApiParameters, { choice, startMs, openings, signal, client }: Started): ServedRequest {
    const { tokenizer, maxTokens, stopTokens: ends } = this.#options;
    const { cache_salt: salt, prompt_cache_key: key, session_hint: hint, min_tokens: minTokens } = parameters;
    const tenant = tenantOf(client, parameters.user);
    const urgency = Math.min(parameters.urgency, client.maxUrgency ?? this.#options.maxUrgency);
    const most = maxTokens - tokens.length + 1; // the last token is never fed back
    if (most < 1) throw createError('KV_LENGTH_OUT_OF_RANGE', { tokens: tokens.length, maxTokens });
    const stopTokens = [...parameters.ignore_eos ? [] : ends, ...parameters.stop_token_ids];
    const sampled = samplerOf(parameters, choice);
    const late = minTokens > 0 ? withoutEarly(sampled, stopTokens, minTokens) : sampled;
    return {
      tokens, maxNewTokens: Math.min(Math.max(1, parameters.max_tokens ?? most), most), stopTokens, tokenizer,
      stopStrings: parameters.stop,
      logProbabilities: parameters.logprobs,
      sampler: openings === undefined ? late : beginningWith(late, openings), tenant, salt, urgency,
      signal, priority: this.#sessions.levelOf(tenant, key, hint), deadlineMs: this.#leftMs(parameters, startMs),
    };
  }

  /** Ms of the deadline that are left. Throws KV_DEADLINE_EXCEEDED. */
  #leftMs({ deadline_ms: askedMs, max_tokens: maxNewTokens }: ApiParameters, startMs: number): number {
    const { deadlineMs: mostMs } = this.#options;
    const deadlineMs = Math.min(askedMs ?? mostMs, mostMs);
    const leftMs = Math.ceil(deadlineMs - (performance.now() - startMs));
    if (leftMs > 0) return leftMs;
    throw createError(
      'KV_DEADLINE_EXCEEDED', { deadlineMs, generatedTokens: 0, maxNewTokens: maxNewTokens ?? this.#options.maxTokens },
    );
  }

  /** Whether a chat template ends with what the model is to think. */
  #hasBegunThinking(tokens: readonly number[]): boolean {
    const pieces = this.#options.tokenizer.pieces();
    const text = tokens.slice(-8).map((token) => pieces.push(token)).join('') + pieces.end();
    return text.trimEnd().endsWith('<think>');
  }

  /** A prompt as the beginning of its answers, with log-probabilities where these are asked for. */
  async #echoOf(prompt: Prompt, request: ServedRequest): Promise<AnswerPart> {
    const { scheduler, tokenizer } = this.#options;
    const pieces = tokenizer.pieces();
    const content = typeof prompt === 'string' ? prompt
      : request.tokens.map((token) => pieces.push(token)).join('') + pieces.end();
    return {
      deltas: [{ content }],
      logProbabilities: request.logProbabilities === undefined ? [] : await scorePrompt(scheduler, request),
    };
  }
}

function charactersOf(prompt: Prompt): number {
  if (typeof prompt === 'string' || !('messages' in prompt)) return prompt.length;
  const { messages, values } = prompt;
  const told = Object.keys(values).length === 0 ? 0 : JSON.stringify(values).length;
  return messages.reduce((sum, message) => sum + (Object.keys(message).length === 2 ? message.content : JSON.stringify(message)).length, told);
}

function notEmpty(tokens: readonly number[], option: string): readonly number[] {
  if (tokens.length > 0) return tokens;
  throw createError('KV_INVALID_OPTION', { reason: 'range', owner: 'the server', option, expected: 'a prompt of at least 1 token', received: tokens });
}
