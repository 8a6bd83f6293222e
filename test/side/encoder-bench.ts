// EncoderBench: one EncoderCache in one test, whose encoders answer when the test lets them. Rows say whose they are: element i of an item
// is a number made from its name and i.

import { setImmediate } from 'node:timers/promises';

import { EncoderCache, type EncoderAcquireOptions, type EncoderCacheOptions, type EncoderHold, type TensorView } from 'virtual-kv';

import { mix32 } from '#internal/base/random.js';

/** Bytes of a row of kind `image`: two floats. */
export const rowBytes = 8;
export const width = 2;

/** The rows of an item, as its encoder makes them. */
export function rowsOf(name: string, tokens: number): Float32Array {
  const key = [...name].reduce((hash, character) => mix32(hash, character.charCodeAt(0)), 7);
  return Float32Array.from({ length: tokens * width }, (_, index) => mix32(key, index) % 65_536);
}

/** A call of an encoder that has not answered. */
export interface Call {
  readonly name: string;
  readonly signal: AbortSignal;
  answer(rows?: TensorView): void;
  fail(error: unknown): void;
}

export class EncoderBench {
  readonly encoder: EncoderCache;
  /** Calls of encoders, in their order, answered ones too. */
  readonly calls: Call[] = [];

  /** A cache of so many rows. */
  constructor(rows: number, options: Partial<EncoderCacheOptions> = {}) {
    this.encoder = new EncoderCache({
      budgetBytes: rows * rowBytes, kinds: { image: { width, dtype: 'float32' }, audio: { width, dtype: 'float32' } }, ...options,
    });
  }

  /** Asks for an item whose encoder answers when `calls` says so. */
  ask(hash: string, tokens: number, more: Partial<EncoderAcquireOptions> = {}): Promise<EncoderHold> {
    return this.encoder.acquire({
      kind: 'image', hash, tokens, ...more,
      compute: ({ signal }) => new Promise((resolve, reject) => {
        this.calls.push({ name: hash, signal, answer: (rows = rowsOf(hash, tokens)) => resolve(rows), fail: reject });
      }),
    });
  }

  /** Asks for an item whose encoder answers at once. */
  take(hash: string, tokens: number, more: Partial<EncoderAcquireOptions> = {}): Promise<EncoderHold> {
    return this.encoder.acquire({
      kind: 'image', hash, tokens,
      compute: ({ signal }) => {
        this.calls.push({ name: hash, signal, answer: () => {}, fail: () => {} });
        return rowsOf(hash, tokens);
      },
      ...more,
    });
  }

  /** Names of the items whose encoders were called. */
  get called(): string {
    return this.calls.map(({ name }) => name).join(' ');
  }

  has(hash: string, more: object = {}): boolean {
    return this.encoder.has({ kind: 'image', hash, ...more });
  }
}

/** Lets all promises that can settle do so. */
export const turn = (): Promise<void> => setImmediate();

/** Whether a promise has settled by the end of this turn. */
export async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  let settled = false;
  promise.then(() => { settled = true; }, () => { settled = true; });
  await turn();
  return settled;
}
