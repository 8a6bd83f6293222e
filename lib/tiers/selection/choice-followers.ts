// ChoiceFollowers: what is made of the tokens that layers of sequences have chosen: means by block, text that comes to
// faster tiers and to the device, blocks that are stored anew in another order. Hints, all of them: no request is the
// worse for them.

import { ChoiceNotes, type ImportanceMeans } from './importance-means.js';
import type { SelectedText } from './selected-text.js';
import type { PrefixDomain } from '../../prefix/domain.js';
import type { RaisedBlocks } from './raised-blocks.js';
import type { StoredBlock } from '../stored-texts.js';
import type { RaisedTexts } from './raised-texts.js';
import type { Reordering } from './reordering.js';

export class ChoiceFollowers {
  /** What was chosen, by block. */
  readonly means: ImportanceMeans;
  readonly raised: RaisedBlocks;
  readonly raisedTexts: RaisedTexts;
  readonly reordering: Reordering;
  readonly #report: (error: unknown) => void;

  /** @param report Hears of failures that no call reports. */
  constructor(
    means: ImportanceMeans, raised: RaisedBlocks, raisedTexts: RaisedTexts, reordering: Reordering,
    report: (error: unknown) => void,
  ) {
    this.means = means;
    this.raised = raised;
    this.raisedTexts = raisedTexts;
    this.reordering = reordering;
    this.#report = report;
  }

  /**
   * Notes what the layers of a sequence choose of these blocks, which have its text behind its first `exactTokens`
   * tokens.
   */
  notesOf(
    selected: SelectedText, blocks: readonly StoredBlock[], domain: PrefixDomain, exactTokens: number,
  ): ChoiceNotes {
    return new ChoiceNotes(
      this.means, blocks, exactTokens, selected.tokens,
      (isNoted) => { this.#chose(selected, blocks, domain, isNoted); });
  }

  /** Resolves when nothing is on its way to where it was raised to. */
  async settled(): Promise<void> {
    await this.raised.settled();
    await this.raisedTexts.settled();
  }

  /** Forgets what waits. */
  clear(): void {
    this.raisedTexts.clear();
    this.reordering.clear();
  }

  /** Begins to raise nothing any more. What that ends is over when all that is returned has resolved. */
  stopRaising(): Promise<unknown>[] {
    return [this.raised.stop(), this.raisedTexts.stop()].filter((each) => each !== undefined);
  }

  /** The same, and stores no block anew. */
  stop(): Promise<unknown>[] {
    const reordering = this.reordering.stop();
    return reordering === undefined ? this.stopRaising() : [reordering, ...this.stopRaising()];
  }

  /**
   * A request's layers have chosen of these blocks. What is made of it are hints: the request is none the worse for a
   * tier of a user's that throws.
   */
  #chose({ text }: SelectedText, blocks: readonly StoredBlock[], domain: PrefixDomain, isNoted: boolean): void {
    try {
      for (const block of blocks) this.raised.offer(block);
      this.raisedTexts.offer(domain, text, blocks.at(-1)!);
      if (isNoted) this.reordering.noted();
    } catch (error) {
      this.#report(error);
    }
  }
}
