// LossySequences: sequences of a random world that are given selected tokens of stored text. Each writes bytes of its own over all that it does not
// have exactly, as an engine does, and computes on: a sequence that finds or shares any of it reads wrong bytes. The lossy sequence's own bytes must stay what it wrote.

import { allHeads, firstAndLast, isKvError, probeHeads, randomTokens, type AcquireOptions, type Sequence, type TokenSelector } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { CacheBench } from '../../helpers/cache.js';
import type { UsedText } from '../prefix/prefix-world.js';
import { domainOf, keysOf, Speaker } from '../prefix/spoken.js';

interface Lossy {
  readonly sequence: Sequence;
  readonly text: readonly number[];
  readonly domain: string;
  /** Of the bytes that it wrote over the selected part. */
  readonly key: number;
}

/** What a world expects, and counts. */
export interface LossyRules {
  readonly hasProbes: boolean;
  readonly expect: (condition: boolean, problem: string) => void;
  readonly count: (what: string, count: number) => void;
}

/** Of the bytes that are computed over selected tokens. */
const lossyDomain = 'lossy';

export class LossySequences {
  readonly #bench: CacheBench;
  readonly #random: Random;
  readonly #rules: LossyRules;
  readonly #speaker: Speaker;
  readonly #selectors: readonly TokenSelector[];
  #live: Lossy[] = [];
  #key = 1_000_000;

  constructor(bench: CacheBench, random: Random, rules: LossyRules) {
    this.#bench = bench;
    this.#random = random;
    this.#rules = rules;
    this.#speaker = new Speaker(bench.cache);
    const chances = Array.from({ length: 3 }, (_, seed) => randomTokens({ seed }));
    this.#selectors = [...chances, firstAndLast(), allHeads(), ...rules.hasProbes ? [probeHeads()] : []];
  }

  get count(): number {
    return this.#live.length;
  }

  /** Rows that they need at most, each with a row that is being copied. */
  get rows(): number {
    const { layout } = this.#bench.cache;
    return this.#live.reduce((sum, { sequence, text }) => sum + Math.max(sequence.mappedRows, layout.rowsFor(text.length)) + 1, 0);
  }

  /** What they found. */
  get texts(): readonly UsedText[] {
    return this.#live.map(({ sequence, text, domain }) => ({ domain, text, tokens: sequence.selection!.exactTokens }));
  }

  /** A prompt gets a sequence with selected tokens, where tiers have some of it. `isOver`: its layers are loaded, or will not be. Throws what `acquire` throws. */
  async acquire(tokens: readonly number[], options: AcquireOptions): Promise<{ readonly isOver: Promise<void> } | undefined> {
    const { cache } = this.#bench;
    const ratio = [0.05, 0.3, 0.6, 1][this.#random.integer(4)]!;
    const selector = this.#selectors[this.#random.integer(this.#selectors.length)]!;
    const { selected } = await cache.prefixes.promote({ tokens, ...options, selection: { ratio, selector, layerTimeoutMs: 60_000 } });
    if (selected === undefined) return undefined;
    const sequence = cache.acquire({ tokens, ...options, selected });
    const { selection } = sequence;
    if (selection === undefined) { // it is gone from its tiers, or has come to the device
      sequence.release();
      return undefined;
    }
    this.#rules.expect(sequence.length === selection.textTokens && selection.exactTokens < selection.textTokens, 'a selection of nothing');
    const lossy: Lossy = { sequence, text: tokens, domain: domainOf(options), key: this.#key += 1 };
    try {
      cache.stamp(sequence, selection.exactTokens, selection.textTokens - selection.exactTokens, lossy.key);
    } catch (error) { // what the driver refuses: some of it is not written
      sequence.release();
      throw error;
    }
    this.#live.push(lossy);
    this.#rules.count('lossy sequences', 1);
    this.#assertBytes(lossy);
    return { isOver: this.#load(lossy) };
  }

  /** One of them computes more, or is released. Throws what `prepare` throws. */
  operate(): void {
    const lossy = this.#live[this.#random.integer(this.#live.length)];
    if (lossy === undefined) return;
    const { sequence, text } = lossy;
    this.#assertBytes(lossy);
    if (sequence.length === text.length || this.#random.chance(0.3)) {
      this.#live = this.#live.filter((other) => other !== lossy);
      this.#rules.expect(sequence.keepValue('lossy') === false, 'a value was kept of selected tokens');
      sequence.release();
      return;
    }
    this.#speaker.compute(sequence, text, 1 + this.#random.integer(text.length - sequence.length), lossyDomain);
    this.#assertBytes(lossy);
  }

  end(): void {
    for (const lossy of this.#live) {
      this.#assertBytes(lossy);
      lossy.sequence.release();
    }
    this.#live = [];
  }

  /** Layer by layer, until the sequence is released or tiers lose its text. */
  async #load({ sequence: { selection } }: Lossy): Promise<void> {
    try {
      for (const { role, layer, heads, dim } of this.#bench.cache.layout.tensors) {
        if (role !== 'key') continue;
        const { tokens } = await selection!.load(layer, { queries: new Float32Array(heads * dim).fill(0.01), queryHeads: heads });
        this.#rules.expect(tokens === selection!.textTokens - selection!.exactTokens - selection!.droppedTokens(layer), 'a layer of another length than it says');
      }
      this.#rules.count('loaded selections', 1);
    } catch (error) {
      if (!isKvError(error) || !['KV_SELECTION_LOST', 'KV_SLOT_RELEASED'].includes(error.code)) throw error;
      this.#rules.count(error.code, 1);
    }
  }

  #assertBytes({ sequence, text, domain, key }: Lossy): void {
    const { cache } = this.#bench;
    const { exactTokens, textTokens } = sequence.selection!;
    const [exact, computed] = [keysOf(text, domain), keysOf(text, lossyDomain)];
    let wrong = cache.verifyStamp(sequence, exactTokens, textTokens - exactTokens, key);
    for (let token = 0; token < exactTokens; token += 1) wrong += cache.verifyStamp(sequence, token, 1, exact[token]!);
    for (let token = textTokens; token < sequence.length; token += 1) wrong += cache.verifyStamp(sequence, token, 1, computed[token]!);
    this.#rules.expect(wrong === 0, `${wrong} tokens of the lossy sequence in slot ${sequence.slot} are wrong`);
  }
}
