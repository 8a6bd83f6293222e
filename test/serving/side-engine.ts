// SideEngine: a PatternEngine that also answers with rows of the cache's side tensors, made of the hash of all tokens up to theirs, from
// arrays that it uses again for every pass. So a row of another text, place, tensor or pass shows.

import type { ExecutionContext } from 'ava';

import type { Engine, EngineOutput, EnginePass, HandOver, KvCache, SideTensorInfo } from 'virtual-kv';

import { mix32 } from '#internal/base/random.js';
import { assertQuiet } from './serving-bench.js';
import { hashOf, PatternEngine, vocabularyTokens } from './pattern-engine.js';

/** Widths whose tokens end inside pages of 64 KiB. */
export const sideTensors = { hidden: { width: 1_000, dtype: 'float32', pageBytes: 64 * 1024 }, feature: { width: 24, dtype: 'float32' } } as const;

export interface SideEngineOptions {
  readonly cache: KvCache;
  readonly pause?: (() => Promise<unknown>) | undefined;
}

/** May replace the side rows of a pass. */
export type Spoil = (side: Record<string, Float32Array>, call: 'prefill' | 'decode') => unknown;

export class SideEngine implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  readonly pattern: PatternEngine;
  /** `inputs` of the sequences of the last pass. */
  inputs: readonly unknown[] = [];
  spoil: Spoil = (side) => side;
  readonly #options: SideEngineOptions;
  readonly #arrays = new Map<string, Float32Array>();

  constructor(options: SideEngineOptions) {
    this.#options = options;
    this.pattern = new PatternEngine({ cache: options.cache, pause: options.pause });
  }

  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.#answer('prefill', pass);
  }

  decode(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.#answer('decode', pass);
  }

  #answer(call: 'prefill' | 'decode', pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    this.inputs = [...pass.inputs];
    const output = this.pattern[call](pass);
    return output instanceof Promise ? output.then((given) => this.#with(given, call, pass)) : this.#with(output, call, pass);
  }

  #with(output: EngineOutput, call: 'prefill' | 'decode', pass: EnginePass): EngineOutput {
    const side = Object.fromEntries(this.#options.cache.sideTensors.map((tensor) => [tensor.name, this.#rows(tensor, pass)]));
    return { ...output, side: this.spoil(side, call) as Record<string, Float32Array> };
  }

  #rows({ name, width }: SideTensorInfo, { length, positions, tokenCounts, starts, contextTokens }: EnginePass): Float32Array {
    const last = length - 1;
    const elements = (starts[last]! + tokenCounts[last]!) * width;
    let array = this.#arrays.get(name);
    if (array === undefined || array.length < elements) this.#arrays.set(name, array = new Float32Array(2 * elements));
    for (let index = 0; index < length; index += 1) {
      let hash = hashOf(contextTokens[index]!, positions[index]! - 1);
      for (let token = 0; token < tokenCounts[index]!; token += 1) {
        hash = mix32(hash, contextTokens[index]![positions[index]! + token]! + 1);
        const row = (starts[index]! + token) * width;
        for (let element = 0; element < width; element += 1) array[row + element] = valueOf(hash, name, element);
      }
    }
    return array.subarray(0, elements);
  }
}

/** Rows of the hand-over that are not those of the text, and those that it lacks of its first `tokens` tokens. */
export function wrongRows(handOver: HandOver | undefined, text: ArrayLike<number>, tokens: number, cache: KvCache): number {
  if (handOver === undefined) return tokens;
  let wrong = 0;
  for (const { name, width } of cache.sideTensors.filter(({ name }) => handOver.names.includes(name))) {
    const has = Math.min(tokens, handOver.tokens);
    const rows = handOver.rows(name, 0, has);
    wrong += tokens - has;
    for (let at = 0; at < has; at += 1) {
      const hash = hashOf(text, at);
      for (const element of [0, width >> 1, width - 1]) {
        if (rows[at * width + element] === valueOf(hash, name, element)) continue;
        wrong += 1;
        break;
      }
    }
  }
  return wrong;
}

/** As `assertQuiet`; and no lease, no side slot and no page of a side tensor is held. */
export function assertSideQuiet(t: ExecutionContext, cache: KvCache, engine: SideEngine): void {
  assertQuiet(t, cache, engine.pattern);
  const { leasedSlots, heldBytes } = cache.sideCounts();
  t.deepEqual({ leasedSlots, heldBytes }, { leasedSlots: 0, heldBytes: 0 });
}

/** A number that a float32 holds exactly. */
function valueOf(hash: number, name: string, element: number): number {
  return mix32(hash, 1000 * name.length + element) & 0xff_ffff;
}
