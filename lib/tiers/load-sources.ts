// LoadSources: from which tier each block of one plan is loaded, by what tiers were measured to be when it was asked
// first. Blocks that lie in the same tiers come from the same one, so a plan compares tiers once for each such set, not
// for each block. For one plan, made and used in one turn.

import type { OpenTier } from './open-tier.js';
import type { StoredBlock } from './stored-texts.js';

/**
 * Milliseconds for a block by which a later tier must have been measured to be faster, and half as long at most: less
 * may be chance.
 */
const clearlyFasterMs = 50;

/**
 * Of tiers that have a block of so many bytes, the fastest first, the one that it is loaded from; undefined: there is
 * none. It is the first one, but for a later one that was measured to be clearly faster; one that owes an answer comes
 * behind the others.
 */
export function sourceOf(having: readonly OpenTier[], bytes: number): OpenTier | undefined {
  const ready = having.filter(({ estimate }) => !estimate.isAwaited);
  const [first, ...later] = ready.length > 0 ? ready : having;
  if (first?.estimate.isMeasured !== true) return first;
  let [fastest, ms] = [first, first.estimate.milliseconds(bytes)];
  for (const open of later) {
    const itsMs = open.estimate.milliseconds(bytes);
    if (open.estimate.isMeasured && itsMs <= ms / 2 && itsMs <= ms - clearlyFasterMs) [fastest, ms] = [open, itsMs];
  }
  return fastest;
}

/** Tiers that have a block, and the one that it is loaded from. */
interface Choice {
  readonly first: OpenTier | undefined;
  readonly source: OpenTier | undefined;
}

export class LoadSources {
  readonly #tiers: readonly OpenTier[];
  readonly #bytesOf: (tokens: number) => number;
  /** By the tokens of a block and the tiers that have it. */
  readonly #choices = new Map<number, Choice>();

  /** @param bytesOf Bytes of a payload of so many tokens. */
  constructor(tiers: readonly OpenTier[], bytesOf: (tokens: number) => number) {
    this.#tiers = tiers;
    this.#bytesOf = bytesOf;
  }

  /** The tier that the block is loaded from; undefined: none in service has it. */
  of(block: StoredBlock): OpenTier | undefined {
    return this.#choose(block).source;
  }

  /**
   * A request loads the block: where an earlier tier has it too, which is passed over for what it was measured to be,
   * that is forgotten now and then.
   */
  passOver(block: StoredBlock): void {
    const { first, source } = this.#choose(block);
    if (first !== undefined && first !== source && !first.estimate.isAwaited && !first.estimate.refuses()) {
      first.estimate.startOver();
    }
  }

  #choose(block: StoredBlock): Choice {
    const name = block.tokens.length * 2 ** 32 + (block.tiers >>> 0);
    let choice = this.#choices.get(name);
    if (choice === undefined) {
      const having = this.#tiers.filter((open) => open.has(block));
      choice = { first: having[0], source: sourceOf(having, this.#bytesOf(block.tokens.length)) };
      this.#choices.set(name, choice);
    }
    return choice;
  }
}
