// RaisedBlocks: brings blocks of which parts were read from a slow tier to the memory of a faster one, where they are
// worth more than what has to go for them. A hint: one block at a time, beside everything else, and dropped when many
// wait.

import type { OpenTier } from '../open-tier.js';
import type { StoredBlock } from '../stored-texts.js';
import type { TierSet } from '../tier-set.js';

/** Blocks that wait at most. */
const mostWaiting = 64;

export class RaisedBlocks {
  readonly #set: TierSet;
  readonly #report: (error: unknown) => void;
  readonly #waiting = new Set<StoredBlock>();
  #running: Promise<void> | undefined;
  #isOver = false;
  /** Blocks that were brought. Read only. */
  raised = 0;

  /** @param report Hears of failures that no call reports. */
  constructor(set: TierSet, report: (error: unknown) => void) {
    this.#set = set;
    this.#report = report;
  }

  /** A selection has read of the block, and what it chose of it is noted. */
  offer(block: StoredBlock): void {
    if (this.#isOver || this.#waiting.size >= mostWaiting || this.#waiting.has(block)
      || this.#goal(block) === undefined) return;
    block.pins += 1;
    this.#waiting.add(block);
    this.#running ??= this.#run();
  }

  /** Resolves when none is under way. */
  async settled(): Promise<void> {
    await this.#running;
  }

  /** Begins none any more. Resolves when none is under way; undefined: none is. */
  stop(): Promise<void> | undefined {
    this.#isOver = true;
    return this.#running;
  }

  async #run(): Promise<void> {
    for (const block of this.#waiting) {
      try {
        const goal = this.#isOver ? undefined : this.#goal(block);
        if (goal !== undefined && await this.#set.copy(block, goal)) this.raised += 1;
      } catch (error) {
        this.#report(error);
      } finally {
        this.#waiting.delete(block);
        block.pins -= 1;
        this.#set.texts.prune(block);
      }
    }
    this.#running = undefined;
  }

  /** The tier whose memory it is worth; undefined: none, or it is there. */
  #goal(block: StoredBlock): OpenTier | undefined {
    const goal = this.#set.all.find(({ tier, state }) => state === 'open' && tier.borrow !== undefined);
    if (goal === undefined || goal.contents.has(block) || block.tiers === 0) return undefined;
    return goal.contents.isWorthRoom(block, this.#set.bytesOf(block.tokens.length)) ? goal : undefined;
  }
}
