// Promotions on a clock that the test steps, from tiers whose reads take as long as it says. Computing a whole text takes a second.

import type { ExecutionContext } from 'ava';

import type { Promotion } from 'virtual-kv';

import type { LoadClock } from '#internal/tiers/load-clock.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import type { CacheBench } from '../../helpers/cache.js';
import { timeLoadsBy } from '../../helpers/patient.js';
import { SteppedClock } from '../../serving/stepped-clock.js';
import { copied, isCopying } from './copies-under-way.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, serve, textOf } from './tier-bench.js';

export const blockTokens = 16;
export const tokens = 60 * blockTokens;
export const computeMs = 1000;
const stepMs = 1;

/** A tier in memory whose reads take as long as `latencyMs` says of each, by its block's number; Infinity: until `letThrough`. Then as long as it has `gapMs` between two. */
export class TimedTier extends PlainTier {
  latencyMs: (block: number) => number = () => 0;
  gapMs = 0;
  reads = 0;
  readonly signals: (AbortSignal | undefined)[] = [];
  readonly #clock: LoadClock;
  #held: (() => void)[] = [];
  #freeAtMs = 0;

  constructor(name: string, clock: LoadClock) {
    super(name);
    this.#clock = clock;
  }

  override async get(key: string, payload: Uint8Array, signal?: AbortSignal): ReturnType<PlainTier['get']> {
    const latencyMs = this.latencyMs(this.blocks.get(key)!.record.position / blockTokens);
    this.#freeAtMs = Math.max(this.#clock.now(), this.#freeAtMs) + (latencyMs === Infinity ? 0 : this.gapMs);
    const ms = Math.max(latencyMs, this.#freeAtMs - this.#clock.now());
    this.reads += 1;
    this.signals.push(signal);
    await this.pause(ms);
    return super.get(key, payload);
  }

  letThrough(): void {
    for (const go of this.#held.splice(0)) go();
  }

  /** Resolves in so long; Infinity: at `letThrough`. */
  protected async pause(ms: number): Promise<void> {
    if (ms === Infinity) await new Promise<void>((resolve) => { this.#held.push(resolve); });
    else if (ms > 0) await new Promise<void>((resolve) => { this.#clock.after(resolve, ms, true); });
  }
}

/** One in which others store too, and that takes `findMs` to say what; Infinity: until `letThrough`. */
export class SharedTimedTier extends TimedTier {
  findMs = 0;
  readonly findSignals: (AbortSignal | undefined)[] = [];

  async find(keys: readonly string[], signal?: AbortSignal): Promise<number> {
    this.findSignals.push(signal);
    await this.pause(this.findMs);
    const missing = keys.findIndex((key) => !this.blocks.has(key));
    return missing < 0 ? keys.length : missing;
  }
}

export class TimedLoads {
  readonly bench: CacheBench;
  readonly tiers: readonly TimedTier[];
  readonly #clock = new SteppedClock();

  /** @param engineMs What the engine takes for `tokens` tokens; 0: nothing is known of it. */
  constructor(
    t: ExecutionContext, names: readonly string[] = ['timed'],
    make = (name: string, clock: LoadClock): TimedTier => new TimedTier(name, clock),
    engineMs = computeMs,
  ) {
    const clock: LoadClock = { now: this.#clock.options.now, after: (wake, delayMs) => this.#clock.options.timer(wake, delayMs) };
    this.tiers = names.map((name) => make(name, clock));
    this.bench = benchOf(t, this.tiers);
    timeLoadsBy(this.bench.cache, clock);
    if (engineMs > 0) this.bench.cache.prefixes.tiers!.hasPrefilled(tokens, engineMs);
  }

  /** The tiers at work. */
  get opened(): readonly OpenTier[] {
    return (this.bench.cache.prefixes.tiers as unknown as { readonly opened: readonly OpenTier[] }).opened;
  }

  /** Text that tiers alone have. */
  async store(first = 0): Promise<void> {
    serve(this.bench, textOf(tokens, first), 3);
    await this.bench.cache.prefixes.tiers!.settled();
    dropFromDevice(this.bench.cache);
  }

  /** Brings a text that tiers alone have, or so many tokens of its start. */
  async promote(first = 0, length = tokens): Promise<Promotion> {
    dropFromDevice(this.bench.cache);
    return this.pass(this.bench.cache.prefixes.promote({ tokens: textOf(length, first) }));
  }

  /** Lets time pass until the promotion is over; none passes while what tiers gave is copied, by threads in a time of their own. */
  async pass<Result>(promotion: Promise<Result>): Promise<Result> {
    let isOver = false;
    const end = (): void => { isOver = true; };
    promotion.then(end, end);
    for (;;) {
      await turn();
      await turn();
      if (isOver) return promotion;
      if (isCopying()) await copied();
      else this.#clock.advance(stepMs);
    }
  }

  /** Lets so much time pass. */
  async wait(ms: number): Promise<void> {
    for (let passed = 0; passed < ms; passed += stepMs) {
      this.#clock.advance(stepMs);
      await turn();
    }
  }
}

/** Computing what did not come of so many tokens, behind the wait. */
export function totalMs({ milliseconds, cachedTokens }: Promotion, length = tokens): number {
  return milliseconds + (computeMs * (length - cachedTokens)) / tokens;
}
