// SelectableTexts: stored text that a sequence may be given in part (lib/importance): what tiers have of a prompt
// behind what is on the device, for `promote`, and whether the cache can select as it is asked to. Loads nothing.

import { createError } from '../../base/errors.js';
import type { TensorSpec } from '../../base/dtypes.js';
import { type ReadSelection, SelectedText } from './selected-text.js';
import type { StoredBlock } from '../stored-texts.js';
import type { TierSet } from '../tier-set.js';
import type { Prompt } from '../../cache/admission.js';
import type { Promotion, PromotionRequest } from '../promotion.js';
import type { Promotions } from '../promotions.js';

/** A prompt, and what is to be selected of it. */
export interface SelectionRequest extends Pick<PromotionRequest, 'domain' | 'text' | 'signal'> {
  readonly selection: ReadSelection;
}

export class SelectableTexts {
  readonly tiers: TierSet;
  readonly #promotions: Promotions;
  readonly #tensors: readonly TensorSpec[];
  readonly #hasProbes: boolean;

  constructor(tiers: TierSet, promotions: Promotions, tensors: readonly TensorSpec[], hasProbes: boolean) {
    this.tiers = tiers;
    this.#promotions = promotions;
    this.#tensors = tensors;
    this.#hasProbes = hasProbes;
  }

  /**
   * What a sequence may be given in part. Nothing is loaded. Throws KV_INVALID_OPTION for a selection that this cache
   * cannot make.
   */
  async find({ domain, text, signal, selection }: SelectionRequest): Promise<Promotion> {
    this.checkRules('Prefixes.promote', 'selection', selection);
    const beganMs = performance.now();
    await this.#promotions.findElsewhere(
      { domain, text, isHint: false, deadlineMs: undefined }, signal ?? new AbortController().signal);
    const cachedTokens = this.#promotions.cachedTokens(domain, text);
    const most = text.length - 1; // one is left to compute
    const missing = this.#promotions.missing(domain, text, most, cachedTokens);
    const { blocks, partial } = this.tiers.match(domain, text, most);
    const all = partial === undefined ? blocks : [...blocks, partial];
    const gone = missing.blocks.find((block) => !this.isInService(block));
    const tokens = gone === undefined ? missing.tokens : Math.max(cachedTokens, gone.from);
    let selected: SelectedText | undefined;
    if (tokens > cachedTokens) {
      const found = all.filter(({ from }) => from < tokens);
      this.tiers.use(found.at(-1)!);
      selected = SelectedText.make({
        owner: this, domain, rules: selection, text: text.slice(0, tokens), blocks: found,
      });
    }
    const end = gone === undefined ? 'complete' : 'lost';
    return {
      cachedTokens, promotedTokens: 0, promotedFrom: {}, end, estimate: undefined, selected,
      milliseconds: performance.now() - beganMs,
    };
  }

  /** Throws KV_INVALID_OPTION where it is not for this text. */
  check(selected: SelectedText, { domain, text }: Prompt): void {
    if (selected.isOf(this, domain, text)) return;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache.acquire', option: 'selected',
      expected: 'what `promote` of this cache resolved with for the same prompt', received: selected,
    });
  }

  /** Whether some tier that is open has the block. */
  isInService(block: StoredBlock): boolean {
    return this.tiers.all.some((open) => open.has(block));
  }

  /** Throws KV_INVALID_OPTION for a selection that this cache cannot make. */
  checkRules(owner: string, option: string, { selector }: ReadSelection): void {
    const wrong = (
      expected: string, received: unknown,
    ): Error => createError('KV_INVALID_OPTION', { reason: 'range', owner, option, expected, received });
    const tensors = this.#tensors;
    const latent = tensors.find(({ role }) => role === 'latent');
    if (latent !== undefined) throw wrong('left out for MLA, which keeps no K and V of single heads', latent.name);
    const { dtype } = tensors[0]!;
    if (dtype !== 'float32' && dtype !== 'float16' && dtype !== 'bfloat16') {
      throw wrong('left out for K and V that are no floating-point numbers of 16 or 32 bits', dtype);
    }
    if (selector.looksAt === 'probe-keys' && !this.#hasProbes) {
      throw wrong(
        'one whose selector reads no probe keys, unless the cache has `prefixCache.importance`', selector.name);
    }
  }
}
