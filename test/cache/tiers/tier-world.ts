// TierWorld: a PrefixWorld whose cache has tiers: text goes down in the background while requests run, is dropped from the device
// now and then, and is promoted, with deadlines and cancellations. Every token found must have been stored, every byte be right; where
// nothing is refused, all that was ever stored is found again, and all that tiers say that they have. Tiers and the driver may fail.

import { isKvError } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { CacheBench } from '../../helpers/cache.js';
import { PrefixWorld, type WorldOptions } from '../prefix/prefix-world.js';
import { domainOf } from '../prefix/spoken.js';
import { dropFromDevice, turn } from './device-index.js';

/** What fails while a world runs. */
export interface TierFailures {
  /** Lets something fail from here on. */
  begin(random: Random): Promise<void>;
  /** Nothing fails any more. */
  end(): Promise<void>;
}

export interface TierWorldOptions extends WorldOptions {
  /** The tiers and the device have room for everything, so that nothing is lost but what is asked for. */
  readonly hasRoom: boolean;
  /** How many of these blocks, from the first on, lie in some tier, as the tiers themselves say. */
  readonly storedBlocks?: (keys: readonly string[]) => Promise<number>;
  readonly failures?: TierFailures;
}

export class TierWorld extends PrefixWorld {
  readonly #bench: CacheBench;
  readonly #random: Random;
  readonly #hasRoom: boolean;
  readonly #storedBlocks: TierWorldOptions['storedBlocks'];
  readonly #failures: TierFailures | undefined;
  #isFailing = false;
  #promoting: Promise<void>[] = [];

  constructor(bench: CacheBench, random: Random, options: TierWorldOptions) {
    super(bench, random, options);
    this.#bench = bench;
    this.#random = random;
    this.#hasRoom = options.hasRoom;
    this.#storedBlocks = options.storedBlocks;
    this.#failures = options.failures;
  }

  async operateOnce(): Promise<void> {
    const roll = this.#random.next();
    if (roll < 0.04) await this.#dropFromDevice();
    else if (roll < 0.14) this.#promote();
    else if (roll < 0.17) await this.#promoteAll();
    else if (roll < 0.19) await this.#fail();
    else this.#operate();
    if (this.#random.chance(0.4)) await turn();
    if (this.#promoting.length > 3) await this.#settlePromotions();
  }

  /** Nothing fails any more. */
  async mend(): Promise<void> {
    if (this.#isFailing) await this.#failures!.end();
    this.#isFailing = false;
  }

  async settle(): Promise<void> {
    await this.#settlePromotions();
    await this.#bench.cache.prefixes.tiers!.settled();
  }

  /** What no sequence uses is in the tiers alone. */
  async #dropFromDevice(): Promise<void> {
    await this.settle();
    dropFromDevice(this.#bench.cache);
    this.count('dropped from the device', 1);
  }

  #operate(): void {
    try {
      this.operate();
    } catch (error) {
      if (this.#failures === undefined || !isKvError(error) || error.code === 'KV_INTERNAL') throw error;
      this.count(error.code, 1); // what the driver refuses
    }
  }

  async #fail(): Promise<void> {
    if (this.#failures === undefined) return;
    if (this.#isFailing) {
      await this.mend();
      return;
    }
    this.#isFailing = true;
    this.count('failures', 1);
    await this.#failures.begin(this.#random);
  }

  /** With nothing else under way, what comes is all that tiers have. */
  async #promoteAll(): Promise<void> {
    if (this.#storedBlocks === undefined || this.#failures !== undefined) return;
    await this.settle();
    const { prefixes } = this.#bench.cache;
    const { blockTokens } = prefixes.tiers!;
    if (this.#random.chance(0.5)) dropFromDevice(this.#bench.cache);
    const tokens = this.prompt();
    const options = this.domain();
    const keys = prefixes.externalKeys({ tokens, ...options }, blockTokens);
    const stored = await this.#storedBlocks(keys) * blockTokens;
    const { cachedTokens, end } = await prefixes.promote({ tokens, ...options });
    const known = this.knownTokens(domainOf(options), tokens);
    this.expect(cachedTokens <= known, `${cachedTokens} tokens on the device after a promotion, ${known} stored`);
    this.expect(end === 'no-memory' || (end === 'complete' && cachedTokens >= stored), `${cachedTokens} tokens promoted of ${stored} in tiers: ${end}`);
    this.count('tokens that tiers said they had', stored);
  }

  #promote(): void {
    const { prefixes } = this.#bench.cache;
    const tokens = this.prompt();
    const options = this.domain();
    const deadlineMs = this.#random.chance(0.1) ? this.#random.integer(2) : undefined;
    const isFailing = this.#failures !== undefined;
    const cancel = this.#random.chance(0.1) ? new AbortController() : undefined;
    const known = this.knownTokens(domainOf(options), tokens);
    const resets = this.resets;
    const interrupted = this.#interrupted();
    this.#promoting.push(prefixes.promote({ tokens, ...options, deadlineMs, signal: cancel?.signal }).then(({ cachedTokens, promotedTokens, promotedFrom, end }) => {
      const nowKnown = this.knownTokens(domainOf(options), tokens); // a running sequence may have stored more meanwhile
      if (resets !== this.resets) return;
      this.expect(cachedTokens <= nowKnown, `${cachedTokens} tokens on the device after a promotion, ${nowKnown} stored`);
      const sum = Object.values(promotedFrom).reduce((total, part) => total + part, 0);
      this.expect(sum === promotedTokens, `${promotedTokens} tokens promoted, ${sum} by tier`);
      this.count('promoted tokens', promotedTokens);
      this.count(end, 1);
      // A reset that is refused ends transfers too.
      if (this.#hasRoom && end !== 'deadline' && end !== 'aborted' && interrupted === this.#interrupted()) {
        this.expect(end === 'complete' && cachedTokens >= known, `${cachedTokens} tokens promoted of ${known} stored: ${end}`);
      }
    }).catch((error: unknown) => {
      if (!isFailing || !isKvError(error) || error.code === 'KV_INTERNAL') throw error;
      this.count(error.code, 1); // what the driver refuses
    }));
    if (cancel !== undefined) setImmediate(() => { cancel.abort(); });
  }

  #interrupted(): number {
    return this.#bench.cache.prefixes.tiers!.metrics().interruptedTransfers;
  }

  async #settlePromotions(): Promise<void> {
    const promoting = this.#promoting;
    this.#promoting = [];
    await Promise.all(promoting);
  }
}
