// SideSpeaker: an engine whose rows say which text they belong to, so that a row of another text, another place or another tensor shows.
// Rows of K and V are left as they are: the tests of the cache are about those.

import { mix32 } from '#internal/base/random.js';
import type { HandOver, KvCache, Sequence, SideTensorInfo } from 'virtual-kv';
import type { DeviceSource } from './device-source.js';
import { readRows } from './side-reading.js';

export interface Spoken {
  readonly sequence: Sequence;
  /** All of its tokens, computed or not. */
  text: number[];
}

export class SideSpeaker {
  readonly #cache: KvCache;
  readonly #source: DeviceSource | undefined;

  /** @param source Where its rows are computed; undefined: in the CPU's memory. */
  constructor(cache: KvCache, source?: DeviceSource) {
    this.#cache = cache;
    this.#source = source;
  }

  /** Acquires a text, computes what is not cached, in chunks, and leaves the sequence running. */
  say(text: readonly number[], { needs, chunk = 2 ** 20, tenant }: { needs?: readonly string[]; chunk?: number; tenant?: string } = {}): Spoken {
    const spoken = { sequence: this.#cache.acquire({ tokens: text, needs, tenant }), text: [...text] };
    try {
      while (spoken.sequence.length < text.length) this.compute([spoken], Math.min(chunk, text.length - spoken.sequence.length));
      return spoken;
    } catch (error) {
      spoken.sequence.release();
      throw error;
    }
  }

  /** The same, released. */
  cacheText(text: readonly number[], options: { needs?: readonly string[]; chunk?: number; tenant?: string } = {}): Spoken {
    const spoken = this.say(text, options);
    spoken.sequence.release();
    return spoken;
  }

  /** One batch: the next `tokens` tokens of each sequence. `skipped`: tensors that the engine does not write. */
  compute(spoken: readonly Spoken[], tokens: number, skipped: readonly string[] = []): void {
    const cache = this.#cache;
    const batch = cache.createBatch();
    for (const { sequence } of spoken) batch.add(sequence, tokens);
    cache.prepare(batch);
    try {
      const rows = this.rowsOf(spoken, tokens, skipped);
      cache.writeSide(batch, this.#source?.putAll(rows) ?? rows);
    } catch (error) {
      cache.discard(batch);
      throw error;
    }
    cache.commit(batch);
  }

  /** Adds a token to the text and computes it. */
  decode(spoken: Spoken, token: number): void {
    spoken.text.push(token);
    spoken.sequence.append(token);
    this.compute([spoken], 1);
  }

  /** Rows of the next `tokens` tokens of each, packed. */
  rowsOf(spoken: readonly Spoken[], tokens: number, skipped: readonly string[] = []): Record<string, Float32Array> {
    const tensors = this.#cache.sideTensors.filter(({ name }) => !skipped.includes(name));
    return Object.fromEntries(tensors.map((tensor) => [tensor.name, this.#packed(spoken, tokens, tensor)]));
  }

  /** Rows of the hand-over that are not what was written for the text's tokens, and those that it does not have of `tokens`. */
  wrongRows(handOver: HandOver, text: readonly number[], tokens = text.length): number {
    let wrong = 0;
    for (const tensor of this.#cache.sideTensors.filter(({ name }) => handOver.names.includes(name))) {
      const has = Math.min(tokens, handOver.tokens);
      const rows = readRows(this.#cache, handOver, tensor.name, 0, has);
      wrong += tokens - has;
      const hashes = prefixHashes(text);
      for (let at = 0; at < has; at += 1) if (!isRow(rows, at, hashes[at]!, tensor)) wrong += 1;
    }
    return wrong;
  }

  #packed(spoken: readonly Spoken[], tokens: number, { name, width }: SideTensorInfo): Float32Array {
    const rows = new Float32Array(spoken.length * tokens * width);
    spoken.forEach(({ sequence, text }, index) => {
      const hashes = prefixHashes(text);
      for (let at = 0; at < tokens; at += 1) {
        const row = (index * tokens + at) * width;
        for (let element = 0; element < width; element += 1) rows[row + element] = valueOf(hashes[sequence.length + at]!, name, element);
      }
    });
    return rows;
  }
}

function isRow(rows: Float32Array, at: number, hash: number, { name, width }: SideTensorInfo): boolean {
  for (let element = 0; element < width; element += 1) if (rows[at * width + element] !== valueOf(hash, name, element)) return false;
  return true;
}

/** A number for each prefix of the text. */
function prefixHashes(text: readonly number[]): number[] {
  let hash = 1;
  return text.map((token) => hash = mix32(hash, token + 1));
}

/** A number that a float32 holds exactly. */
function valueOf(hash: number, name: string, element: number): number {
  return mix32(hash, 1000 * name.length + element) & 0xff_ffff;
}
