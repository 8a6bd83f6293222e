// TokenizerThread: tokenizes texts and conversations on a worker thread, one after the other in the order in which they
// came. The worker starts with the first text, and keeps the process alive only while a text is waited for. Where it
// dies, the text that it had under way fails, and the next one gets another worker. For one thread; its owner closes
// it.

import path = require('node:path');
import { Worker } from 'node:worker_threads';

import { createError } from '../base/errors.js';
import { endedError, receivedError } from './model-error.js';
import type { TokenizerAnswer, TokenizerJob } from './tokenizer-worker.js';
import type { TokenizerSource } from './tokenizer.js';

/** A text that is to be tokenized. */
interface Job {
  readonly given: TokenizerJob;
  readonly resolve: (tokens: number[]) => void;
  readonly reject: (error: unknown) => void;
  /** Its caller has given up: the answer is dropped. */
  isOver: boolean;
}

export class TokenizerThread {
  readonly #source: TokenizerSource;
  readonly #file: string;
  /** Texts that the worker does not have yet, the oldest first. */
  readonly #waiting = new Set<Job>();
  #running: Job | undefined;
  #worker: Worker | undefined;
  #closed: Promise<void> | undefined;

  /** `file`: what the worker runs; for tests. */
  constructor(source: TokenizerSource, file = path.join(__dirname, 'tokenizer-worker.js')) {
    this.#source = source;
    this.#file = file;
  }

  /**
   * Tokens of a text, or of a conversation. Rejects with KV_MODEL_INVALID when the tokenizer's files have changed,
   * KV_ABORTED, KV_CLOSED, KV_INTERNAL when the worker has died, and what the tokenizer library throws.
   */
  encode(given: TokenizerJob, signal?: AbortSignal): Promise<number[]> {
    return new Promise((resolve, reject) => {
      if (this.#closed !== undefined) throw closedError();
      const job: Job = { given, resolve: settled(resolve), reject: settled(reject), isOver: false };
      const abort = (): void => {
        this.#waiting.delete(job);
        job.reject(createError('KV_ABORTED', { operation: 'tokenizing' }, { cause: signal?.reason }));
        this.#keepAlive();
      };
      function settled<T>(settle: (value: T) => void): (value: T) => void {
        return (value) => {
          job.isOver = true;
          signal?.removeEventListener('abort', abort);
          settle(value);
        };
      }
      if (signal?.aborted === true) return abort();
      signal?.addEventListener('abort', abort, { once: true });
      this.#waiting.add(job);
      this.#next();
    });
  }

  /** Rejects what is under way with KV_CLOSED and ends the worker. Idempotent; resolves when it has ended. */
  close(): Promise<void> {
    if (this.#closed !== undefined) return this.#closed;
    const worker = this.#worker;
    this.#worker = undefined;
    this.#closed = Promise.resolve(worker?.terminate()).then(() => {});
    const jobs = this.#running === undefined ? [...this.#waiting] : [this.#running, ...this.#waiting];
    this.#running = undefined;
    this.#waiting.clear();
    for (const job of jobs) job.reject(closedError());
    return this.#closed;
  }

  /** Gives the worker its next text when it has none. */
  #next(): void {
    const [job] = this.#waiting;
    if (this.#running === undefined && job !== undefined) {
      this.#waiting.delete(job);
      this.#running = job;
      try {
        this.#worker ??= this.#start();
        this.#worker.postMessage(job.given);
      } catch (error) { // no thread could be started, or what is given cannot go to one
        this.#end((failed) => { failed.reject(error); });
      }
    }
    this.#keepAlive();
  }

  #start(): Worker {
    const worker = new Worker(this.#file, { workerData: this.#source });
    let cause: unknown;
    worker.on('message', (answer: TokenizerAnswer) => {
      if (worker !== this.#worker) return;
      this.#end((job) => {
        if ('tokens' in answer) job.resolve(numbersOf(answer.tokens));
        else job.reject(receivedError(answer));
      });
    });
    worker.on('error', (error) => { cause = error; });
    worker.on('exit', (exitCode) => {
      if (worker !== this.#worker) return;
      this.#worker = undefined;
      this.#end((job) => { job.reject(endedError('tokenizes', exitCode, cause)); });
    });
    return worker;
  }

  /** The text under way is over, and the next one's turn comes. */
  #end(settle: (job: Job) => void): void {
    const job = this.#running;
    this.#running = undefined;
    if (job !== undefined) settle(job);
    this.#next();
  }

  #keepAlive(): void {
    const isWaitedFor = this.#waiting.size > 0 || this.#running?.isOver === false;
    if (isWaitedFor) this.#worker?.ref();
    else this.#worker?.unref();
  }
}

/** `Array.from` takes four times as long, on the JavaScript thread. */
function numbersOf(tokens: Int32Array): number[] {
  const numbers = new Array<number>(tokens.length);
  for (let index = 0; index < tokens.length; index += 1) numbers[index] = tokens[index]!;
  return numbers;
}

function closedError(): Error {
  return createError('KV_CLOSED', { operation: 'tokenize', owner: 'BackgroundTokenizer' });
}
