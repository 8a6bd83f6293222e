// Completion: one HTTP request's answers: submits a request of the scheduler for each choice, all or none of them, and makes the objects
// of OpenAI's API of what comes: whole, or as chunks.

import { randomUUID } from 'node:crypto';

import type { TokenLogProbability } from '../index.js';
import { Answer, type AnswerPart, type FinishWord } from './answer.js';
import type { CompletionKind } from './api-request.js';
import type { ChatDelta } from './chat-text.js';

export interface CompletionOptions {
  readonly kind: CompletionKind;
  readonly modelName: string;
  readonly answers: readonly Answer[];
  /** The first answer to each prompt. */
  readonly leaders: readonly Answer[];
  /** Of all prompts together, each counted once. */
  readonly promptTokens: number;
  /** What cached tokens are told in multiples of, 1 or more. */
  readonly cachedUnitTokens: number;
  /** In seconds since 1970. */
  readonly created: number;
}

interface Part extends AnswerPart {
  readonly answer: Answer;
  readonly finishReason: FinishWord | null;
}

/** OpenAI's `usage`. */
export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

export class Completion {
  readonly id: string;
  readonly #options: CompletionOptions;

  constructor(options: CompletionOptions) {
    this.#options = options;
    this.id = `${options.kind === 'chat' ? 'chatcmpl' : 'cmpl'}-${randomUUID()}`;
  }

  /** Tokens so far. Cached tokens are those that the first answer to a prompt found: the others find what that one computed. */
  get usage(): Usage {
    const { answers, leaders, promptTokens, cachedUnitTokens: unit } = this.#options;
    const completionTokens = answers.reduce((sum, { tokens }) => sum + tokens, 0);
    const cachedTokens = leaders.reduce((sum, answer) => sum + answer.cachedTokens - answer.cachedTokens % unit, 0);
    return {
      prompt_tokens: promptTokens, completion_tokens: completionTokens, total_tokens: promptTokens + completionTokens,
      prompt_tokens_details: { cached_tokens: cachedTokens },
    };
  }

  /** Ends all answers at once. Nothing happens to those that have ended. */
  cancel(): void {
    for (const answer of this.#options.answers) answer.cancel();
  }

  /** The whole response. Throws what ended an answer, after it has ended the others. */
  async whole(): Promise<object> {
    const { kind, answers } = this.#options;
    const lists = answers.map((): TokenLogProbability[] => []);
    const deltas = answers.map((): ChatDelta[] => []);
    await this.#each(({ answer, deltas: news, logProbabilities }) => {
      deltas[answer.index]!.push(...news);
      lists[answer.index]!.push(...logProbabilities);
    });
    const choices = answers.map(({ index, finishReason, logprobs }) => ({
      index, ...kind === 'chat' ? { message: messageOf(deltas[index]!) } : { text: textOf(deltas[index]!, 'content') },
      logprobs: logprobs?.write(lists[index]!) ?? null, finish_reason: finishReason,
    }));
    return { ...this.#head(kind === 'chat' ? 'chat.completion' : 'text_completion'), choices, usage: this.usage };
  }

  /** The response in chunks; with `includesUsage` the last has no choices, and the usage. Throws as `whole`. */
  async *chunks(includesUsage: boolean): AsyncGenerator<object, void, undefined> {
    const { kind, answers } = this.#options;
    const head = this.#head(kind === 'chat' ? 'chat.completion.chunk' : 'text_completion');
    const usage = includesUsage ? { usage: null } : {};
    const chunkOf = (
      index: number, what: object, logprobs: object | null, finishReason: FinishWord | null,
    ): object => ({
      ...head, choices: [{ index, ...what, logprobs, finish_reason: finishReason }], ...usage,
    });
    const calls = answers.map(() => 0);
    const written = (index: number, delta: ChatDelta): object => {
      if (kind === 'text') return { text: 'content' in delta ? delta.content : '' };
      return { delta: 'call' in delta ? { tool_calls: [{ index: calls[index]!++, ...delta.call }] } : delta };
    };
    try {
      if (kind === 'chat') for (const { index } of answers) yield chunkOf(
        index, { delta: { role: 'assistant', content: '' } }, null, null,
      );
      for await (const { answer, deltas, logProbabilities, finishReason } of merge(answers.map(partsOf))) {
        const { index } = answer;
        let logprobs = logProbabilities.length === 0 ? null : answer.logprobs?.write(logProbabilities) ?? null;
        for (const delta of deltas.length === 0 && logprobs !== null ? [{ content: '' }] : deltas) {
          yield chunkOf(index, written(index, delta), logprobs, null);
          logprobs = null; // with the first
        }
        if (finishReason !== null) yield chunkOf(
          index, kind === 'chat' ? { delta: {} } : { text: '' }, null, finishReason,
        );
      }
      if (includesUsage) yield { ...head, choices: [], usage: this.usage };
    } finally {
      this.cancel();
    }
  }

  async #each(take: (part: Part) => void): Promise<void> {
    try {
      for await (const part of merge(this.#options.answers.map(partsOf))) take(part);
    } finally {
      this.cancel();
    }
  }

  #head(object: string): object {
    const { created, modelName: model } = this.#options;
    return { id: this.id, object, created, model, system_fingerprint: null };
  }
}

function textOf(deltas: readonly ChatDelta[], name: 'content' | 'reasoning_content'): string {
  return deltas.map((delta) => (delta as Readonly<Record<string, unknown>>)[name] ?? '').join('');
}

function messageOf(deltas: readonly ChatDelta[]): object {
  const calls = deltas.flatMap((delta) => ('call' in delta ? [delta.call] : []));
  const [content, reasoning] = [textOf(deltas, 'content'), textOf(deltas, 'reasoning_content')];
  return {
    role: 'assistant', content: content === '' && calls.length > 0 ? null : content, refusal: null,
    ...reasoning === '' ? {} : { reasoning_content: reasoning }, ...calls.length === 0 ? {} : { tool_calls: calls },
  };
}

/** The pieces of an answer, and at last why it ended. */
async function* partsOf(answer: Answer): AsyncGenerator<Part, void, undefined> {
  for await (const part of answer.parts()) yield { answer, ...part, finishReason: null };
  yield { answer, deltas: [], logProbabilities: [], finishReason: answer.finishReason! };
}

/** Yields what all yield, each value as it comes; one of each is fetched ahead. Throws what the first throws; leaves all when it is left. */
async function* merge<T>(sources: readonly AsyncIterator<T, void, undefined>[]): AsyncGenerator<T, void, undefined> {
  const ready: (() => IteratorResult<T, void>)[] = [];
  const owners: AsyncIterator<T, void, undefined>[] = [];
  let wake = (): void => {};
  const fetch = (source: AsyncIterator<T, void, undefined>): void => {
    const put = (take: () => IteratorResult<T, void>): void => {
      ready.push(take);
      owners.push(source);
      wake();
    };
    source.next().then((result) => { put(() => result); }, (error: unknown) => { put(() => { throw error; }); });
  };
  try {
    for (const source of sources) fetch(source);
    for (let open = sources.length; open > 0;) {
      if (ready.length === 0) await new Promise<void>((resolve) => { wake = resolve; });
      const [take, source] = [ready.shift()!, owners.shift()!];
      const { done, value } = take();
      if (done === true) {
        open -= 1;
        continue;
      }
      yield value;
      fetch(source);
    }
  } finally {
    for (const source of sources) void source.return?.().catch(() => {});
  }
}
