// RequestText: the token ids of one request of a replay, prompt and answer. A trace has lengths and the identity of
// blocks, never text: each hash id stands for HASH_BLOCK_TOKENS tokens, the same wherever it is; tokens without an id
// (of a prompt without ids, of the answer) are the request's own. Made of runs: one for each id, the last of the prompt
// cut to its length, then those of the answer.
//
// Invariants: two ids differ in every token; the key of a run is made of all ids up to it, so equal keys are equal
// prefixes.

import { mix32 } from '../base/random.js';
import type { StampKeys } from './stamps.js';
import { HASH_BLOCK_TOKENS, type TraceRequest } from './trace-request.js';

const ID_BITS = 0x7fff_ffff;

export interface RequestTextOptions {
  readonly request: TraceRequest;
  /** The first id that no other request has. Ids from it downwards, `ownIds` of them, become this request's own. */
  readonly ownId: number;
  /** Chooses the keys. */
  readonly seed: number;
}

export class RequestText implements StampKeys {
  /** Ids taken from `ownId` downwards. */
  readonly ownIds: number;
  readonly #promptTokens: number;
  readonly #promptRuns: number;
  /** By run. */
  readonly #ids: Int32Array;
  readonly #keys: Uint32Array;

  constructor({ request, ownId, seed }: RequestTextOptions) {
    const { promptTokens, outputTokens, hashIds = new Int32Array(0) } = request;
    this.#promptTokens = promptTokens;
    this.#promptRuns = Math.ceil(promptTokens / HASH_BLOCK_TOKENS);
    this.#ids = new Int32Array(this.#promptRuns + Math.ceil(outputTokens / HASH_BLOCK_TOKENS));
    this.#keys = new Uint32Array(this.#ids.length);
    this.#ids.set(hashIds);
    this.ownIds = this.#ids.length - hashIds.length;
    let key = mix32(seed, 0);
    for (let run = 0; run < this.#ids.length; run += 1) {
      if (run >= hashIds.length) this.#ids[run] = ownId - (run - hashIds.length);
      key = mix32(key, this.#ids[run]!);
      this.#keys[run] = key;
    }
  }

  /** The first `tokens` token ids. */
  tokens(tokens: number): Int32Array {
    const text = new Int32Array(tokens);
    for (let run = 0; run < this.#ids.length; run += 1) {
      const from = this.#startOf(run);
      if (from >= tokens) break;
      const end = Math.min(tokens, this.#endOf(run));
      for (let token = from; token < end; token += 1) text[token] = tokenOf(this.#ids[run]!, token - from);
    }
    return text;
  }

  tokenAt(token: number): number {
    const run = this.#runOf(token);
    return tokenOf(this.#ids[run]!, token - this.#startOf(run));
  }

  keyAt(token: number): number {
    return this.#keys[this.#runOf(token)]!;
  }

  runEnd(token: number): number {
    return this.#endOf(this.#runOf(token));
  }

  nextEdge(token: number): number {
    const run = this.#runOf(token);
    const start = this.#startOf(run);
    if (token === start) return token;
    const end = this.#endOf(run);
    return end === start + HASH_BLOCK_TOKENS ? end - 1 : end;
  }

  #runOf(token: number): number {
    const behindPrompt = token - this.#promptTokens;
    return behindPrompt < 0
      ? Math.floor(token / HASH_BLOCK_TOKENS)
      : this.#promptRuns + Math.floor(behindPrompt / HASH_BLOCK_TOKENS);
  }

  #startOf(run: number): number {
    const behindPrompt = run - this.#promptRuns;
    return behindPrompt < 0 ? run * HASH_BLOCK_TOKENS : this.#promptTokens + behindPrompt * HASH_BLOCK_TOKENS;
  }

  #endOf(run: number): number {
    const end = this.#startOf(run) + HASH_BLOCK_TOKENS;
    return run < this.#promptRuns ? Math.min(this.#promptTokens, end) : end;
  }
}

/** For one offset, each step is a bijection of the 31-bit ids. */
function tokenOf(id: number, offset: number): number {
  let token = (id ^ Math.imul(offset + 1, 0x9e3779b1)) & ID_BITS;
  token = Math.imul(token ^ (token >>> 15), 0x2c1b3c6d) & ID_BITS;
  token = Math.imul(token ^ (token >>> 12), 0x297a2d39) & ID_BITS;
  return token ^ (token >>> 15);
}
