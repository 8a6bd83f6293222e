// ForeignBlocks: asks tiers whose blocks others store too (`find`) which whole blocks of a text they have beyond those
// that are known. An answer is waited for a small share of the time that computing takes; one that comes later only
// tells how fast the tier is, and the request goes on with what the other tiers have.

import type { PrefixDomain } from '../prefix/domain.js';
import { FreeTime, type LoadClock } from './load-clock.js';
import { LoadDeadline, type PrefillRate } from './load-estimate.js';
import type { OpenTier } from './open-tier.js';
import type { PromotionEnd, PromotionRequest } from './promotion.js';
import type { TierSet } from './tier-set.js';

/** Whose text it is, and what bounds the wait. */
export type FindRequest = Pick<PromotionRequest, 'domain' | 'text' | 'isHint' | 'deadlineMs'>;

/** Why it is not known what some tier has: its answer was not waited for, or its store gives none. */
export type Unasked = Extract<PromotionEnd, 'recompute-cheaper' | 'unreachable'>;

/** Blocks that a tier has, or why that is not known, and how long the request waited to hear it. */
interface Found {
  readonly blocks: number | Unasked;
  readonly waitedMs: number;
}

export class ForeignBlocks {
  readonly #tiers: TierSet;
  readonly #prefill: PrefillRate;

  constructor(tiers: TierSet, prefill: PrefillRate) {
    this.#tiers = tiers;
    this.#prefill = prefill;
  }

  /**
   * Notes which whole blocks of the text tiers have that were not known to have them. Ends when `limit` is aborted, of
   * which a tier that is being asked hears. Returns why it is not known what all of them have, where that is so: of the
   * first that has not said it.
   */
  async find(request: FindRequest, limit: AbortSignal, clock: LoadClock): Promise<Unasked | undefined> {
    const { domain, text } = request;
    let waitedMs = 0;
    let unasked: Unasked | undefined;
    for (const open of this.#tiers.all) {
      if (open.state === 'failed' || open.state === 'opening') unasked ??= 'unreachable';
      if (!open.canFind) continue;
      const keys = this.#tiers.keys.ofText(domain, text, this.#tiers.names);
      // What it has may lead on to blocks that are known, and behind these there may be more.
      for (let missing = -1, from = this.#wholeBlocks(domain, text);
          from < keys.length && from !== missing; from = this.#wholeBlocks(domain, text)) {
        if (!request.isHint && open.finds.isOwed && open.finds.passBy()) {
          unasked ??= 'recompute-cheaper';
          break;
        }
        const computeMs = this.#prefill.milliseconds(text.length - from * this.#tiers.keys.blockTokens);
        const mostMs = LoadDeadline.findMs(request, open.finds, computeMs) - waitedMs;
        const found = await ask(open, keys.slice(from), { mostMs, limit, clock });
        waitedMs += found.waitedMs;
        if (typeof found.blocks === 'string') unasked ??= found.blocks;
        if (typeof found.blocks === 'string' || found.blocks === 0) break;
        this.#note(open, domain, text, keys.slice(0, from + found.blocks), from);
        missing = from + found.blocks;
      }
    }
    return unasked;
  }

  /** Whole blocks from the text's start that some tier has. */
  #wholeBlocks(domain: PrefixDomain, text: Int32Array): number {
    const { blocks } = this.#tiers.match(domain, text);
    const hole = blocks.findIndex(({ tokens, tiers }) => tokens.length < this.#tiers.keys.blockTokens || tiers === 0);
    return hole < 0 ? blocks.length : hole;
  }

  /** A tier has the blocks of these keys, those from `from` on. */
  #note({ contents }: OpenTier, domain: PrefixDomain, text: Int32Array, keys: readonly string[], from: number): void {
    const { texts, keys: { blockTokens } } = this.#tiers;
    let parent = this.#tiers.rootFor(domain);
    for (const [index, key] of keys.entries()) {
      const start = index * blockTokens;
      parent = texts.add(parent, key, text.slice(start, start + blockTokens));
      if (index >= from) contents.add(parent, this.#tiers.bytesOf(blockTokens));
    }
  }
}

/**
 * How many of these blocks the tier has. Where it has not said so in time its answer is owed, and tells how fast it is.
 */
async function ask(
  open: OpenTier, keys: readonly string[],
  { mostMs, limit, clock }: { readonly mostMs: number; readonly limit: AbortSignal; readonly clock: LoadClock },
): Promise<Found> {
  const [taken, late] = [new AbortController(), new AbortController()]; // taken back, or not waited for
  const takeBack = (): void => { taken.abort(limit.reason); };
  limit.addEventListener('abort', takeBack, { once: true });
  if (limit.aborted) takeBack();
  const loadDeadline = new LoadDeadline(late, clock);
  if (mostMs > 0) loadDeadline.last(mostMs);
  else late.abort();
  try {
    const answer = open.find(keys, taken.signal).then((blocks) => blocks ?? 'unreachable');
    const blocks = await Promise.race([answer, aborted(taken.signal), aborted(late.signal)]);
    const waitedMs = loadDeadline.end();
    if (typeof blocks === 'number' || typeof blocks === 'string') {
      open.finds.came(waitedMs);
      return { blocks, waitedMs };
    }
    if (!taken.signal.aborted) {
      const time = new FreeTime(clock, waitedMs, false);
      const over = open.finds.owe(time);
      void answer.then(() => {
        over();
        open.finds.came(time.end());
      });
    }
    return { blocks: 'recompute-cheaper', waitedMs };
  } finally {
    limit.removeEventListener('abort', takeBack);
  }
}

export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => { resolve(); }, { once: true });
  });
}
