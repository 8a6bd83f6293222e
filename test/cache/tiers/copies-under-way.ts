// Copies between the device and tiers: threads make them in a time of their own, so a test that steps its clock lets
// them end first.

import { BlockCopies } from '#internal/tiers/transfers.js';
import { turn } from './device-index.js';

const underWay = new Set<Promise<unknown>>();
const { copy } = BlockCopies.prototype;

BlockCopies.prototype.copy = function counted(given) {
  const end = copy.call(this, given);
  const over = (): void => { underWay.delete(end); };
  underWay.add(end);
  end.then(over, over);
  return end;
};

/** Whether any cache of this process copies. */
export function isCopying(): boolean {
  return underWay.size > 0;
}

/** Resolves in a later turn of the event loop, when no cache of this process copies, nor goes on to do so. */
export async function copied(): Promise<void> {
  do {
    await Promise.allSettled(underWay);
    await turn();
  } while (underWay.size > 0);
}
