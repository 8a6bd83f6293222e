// TierWorld: a PrefixWorld whose cache has tiers: text goes down in the background while requests run, is dropped from the device
// now and then, and is promoted, with deadlines and cancellations, or selected from by sequences of which nothing may be left anywhere
// (lossy-sequences.ts), and is stored in another order. Every token found must have been stored, every byte be right; where
// nothing is refused, all that was ever stored is found again, and all that tiers say that they have. Tiers and the driver may fail.

import { isKvError, type AcquireOptions } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { CacheBench } from '../../helpers/cache.js';
import { PrefixWorld, type UsedText, type WorldOptions } from '../prefix/prefix-world.js';
import { domainOf } from '../prefix/spoken.js';
import { dropFromDevice, turn } from './device-index.js';
import { LossySequences } from './lossy-sequences.js';

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
  /** Whether some tier stores blocks in another order. */
  readonly canReorder?: boolean;
  /** Whether stored blocks have probe keys. */
  readonly hasProbes?: boolean;
}

export class TierWorld extends PrefixWorld {
  readonly #bench: CacheBench;
  readonly #random: Random;
  readonly #hasRoom: boolean;
  readonly #storedBlocks: TierWorldOptions['storedBlocks'];
  readonly #failures: TierFailures | undefined;
  readonly #canReorder: boolean;
  readonly #lossy: LossySequences;
  /** What was selected from last. */
  #selected: { readonly tokens: number[]; readonly options: AcquireOptions } | undefined;
  #isFailing = false;
  #promoting: Promise<void>[] = [];
  /** Of promotions that are not cancelled. */
  readonly #whole = new AbortController();

  constructor(bench: CacheBench, random: Random, options: TierWorldOptions) {
    super(bench, random, options);
    this.#bench = bench;
    this.#random = random;
    this.#hasRoom = options.hasRoom;
    this.#storedBlocks = options.storedBlocks;
    this.#failures = options.failures;
    this.#canReorder = options.canReorder ?? false;
    this.#lossy = new LossySequences(bench, random, {
      hasProbes: options.hasProbes ?? false, expect: (condition, problem) => { this.expect(condition, problem); }, count: (what, count) => { this.count(what, count); },
    });
  }

  async operateOnce(): Promise<void> {
    const roll = this.#random.next();
    if (roll < 0.04) await this.#dropFromDevice();
    else if (roll < 0.14) this.#promote();
    else if (roll < 0.17) await this.#promoteAll();
    else if (roll < 0.19) await this.#fail();
    else if (roll < 0.23) await this.#refusable(() => this.#select());
    else if (roll < 0.27) await this.#refusable(() => { this.#lossy.operate(); });
    else if (roll < 0.275) await this.#refusable(() => this.#reorder());
    else this.#operate();
    if (this.#random.chance(0.4)) await turn();
    if (this.#promoting.length > 3) await this.#settlePromotions();
  }

  /** What tiers keep longer. */
  override priorityOf(tokens: readonly number[]): number {
    return [0, 0, 7][tokens.length % 3]!;
  }

  override otherTexts(): readonly UsedText[] {
    return this.#lossy.texts;
  }

  override otherRows(): number {
    return this.#lossy.rows;
  }

  override end(): void {
    this.#lossy.end();
    super.end();
  }

  /** Signals that promotions were given. */
  get signals(): readonly AbortSignal[] {
    return [this.#whole.signal];
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

  /** What no sequence uses is in the tiers alone: nothing is dropped that still waits for its fence, or to be read. */
  async #dropFromDevice(): Promise<void> {
    await this.#storeAll();
    dropFromDevice(this.#bench.cache);
    this.count('dropped from the device', 1);
  }

  /** Every text whose sequence is over has been offered to the tiers, where there is room; what was interrupted is tried again. */
  async #storeAll(): Promise<void> {
    const tiers = this.#bench.cache.prefixes.tiers!;
    this.completeStep();
    await this.settle();
    for (let round = 0; this.#hasRoom && tiers.metrics().waitingTexts > 0; round += 1) {
      this.expect(round < 4, `${tiers.metrics().waitingTexts} finished texts are not stored, with nothing in their way`);
      await this.settle();
    }
  }

  #operate(): void {
    try {
      this.operate();
    } catch (error) {
      if (this.#failures === undefined || !isKvError(error) || error.code === 'KV_INTERNAL') throw error;
      this.count(error.code, 1); // what the driver refuses
    }
  }

  /** Calls what a want of room or a failing driver may refuse, after which nothing has changed. */
  async #refusable(call: () => void | Promise<void>): Promise<void> {
    try {
      await call();
    } catch (error) {
      const isWant = isKvError(error) && ['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT'].includes(error.code);
      if (!isKvError(error) || error.code === 'KV_INTERNAL' || (this.#failures === undefined && !isWant)) throw error;
      this.count(error.code, 1);
    }
  }

  async #select(): Promise<void> {
    if (this.#lossy.count > 1) return; // others need slots, too
    this.#freeSlot();
    if (this.#random.chance(0.5)) await this.#dropFromDevice();
    const [tokens, options] = [this.prompt(), this.domain()];
    const acquired = await this.#lossy.acquire(tokens, options);
    if (acquired === undefined) return;
    this.#selected = { tokens, options };
    this.remember(tokens);
    this.#promoting.push(acquired.isOver);
  }

  #freeSlot(): void {
    const { activeSlots, retiringSlots } = this.#bench.cache.counts();
    if (activeSlots + retiringSlots < this.#bench.cache.maxSequences) return;
    this.release();
    this.completeStep();
  }

  /** Several selections of one text, by which its blocks are worth storing in another order; that goes on beside what comes then. */
  async #reorder(): Promise<void> {
    if (!this.#canReorder || this.#selected === undefined) return;
    const { tokens, options } = this.#selected;
    for (let round = 0; round < 5; round += 1) {
      this.#freeSlot();
      await this.#dropFromDevice();
      await (await this.#lossy.acquire(tokens, options))?.isOver;
      this.#lossy.end();
    }
    const tiers = this.#bench.cache.prefixes.tiers!;
    this.#promoting.push(tiers.reorder({ mostBlocks: 4 }).then((blocks) => { this.count('reordered blocks', blocks); }));
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
    await this.#storeAll();
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
    const isOver = end === 'complete' || (end === 'lost' && !this.#hasRoom); // a store that evicts by itself does not tell
    this.expect(end === 'no-memory' || (isOver && cachedTokens >= this.surelyFound(domainOf(options), tokens, stored)), `${cachedTokens} tokens promoted of ${stored} in tiers: ${end}`);
    this.count('tokens that tiers said they had', stored);
  }

  #promote(): void {
    const { prefixes } = this.#bench.cache;
    const tokens = this.prompt();
    const options = this.domain();
    const deadlineMs = this.#random.chance(0.1) ? this.#random.integer(2) : undefined;
    const isFailing = this.#failures !== undefined;
    const cancel = this.#random.chance(0.1) ? new AbortController() : undefined;
    const sure = this.tokensSinceReset(domainOf(options), tokens);
    const resets = this.resets;
    const interrupted = this.#interrupted();
    this.#promoting.push(prefixes.promote({ tokens, ...options, deadlineMs, signal: (cancel ?? this.#whole).signal }).then(({ cachedTokens, promotedTokens, promotedFrom, end }) => {
      const nowKnown = this.knownTokens(domainOf(options), tokens); // a running sequence may have stored more meanwhile
      if (resets !== this.resets) return;
      this.expect(cachedTokens <= nowKnown, `${cachedTokens} tokens on the device after a promotion, ${nowKnown} stored`);
      const sum = Object.values(promotedFrom).reduce((total, part) => total + part, 0);
      this.expect(sum === promotedTokens, `${promotedTokens} tokens promoted, ${sum} by tier`);
      this.count('promoted tokens', promotedTokens);
      this.count(end, 1);
      // A refusal for want of room ends transfers, too.
      if (this.#hasRoom && end !== 'deadline' && end !== 'aborted' && interrupted === this.#interrupted()) {
        // The end of what came, less than a row, may be gone again: a sequence that goes on in that row writes other tokens there.
        const isOver = end === 'complete' || end === 'no-memory';
        this.expect(isOver && cachedTokens >= this.surelyFound(domainOf(options), tokens, sure), `${cachedTokens} tokens promoted of ${sure} stored: ${end}`);
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
