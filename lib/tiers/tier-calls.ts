// TierCalls: calls of one tier that have not been answered, and how many have: by them its cache knows, when it closes,
// whether to go on waiting.

import { FreeTime } from './free-time.js';
import type { LoadClock } from './load-clock.js';

/** So often within the limit it is looked whether a tier has answered. */
const looks = 10;

export class TierCalls {
  /** Calls that have not been answered. Read only. */
  underWay = 0;
  /** Calls that were answered, so far. Read only. */
  answers = 0;

  /** Counts a call until it is answered. Returns it. */
  track<T>(call: Promise<T> | T): Promise<T> {
    this.underWay += 1;
    const answer = Promise.resolve(call);
    const over = (): void => {
      this.underWay -= 1;
      this.answers += 1;
    };
    answer.then(over, over);
    return answer;
  }
}

/**
 * Resolves once `work` is over, true, or once calls are under way of which none was answered for `limitMs` in which
 * this thread could have noticed, false. Rejects as `work` does.
 */
export async function isOverBeforeSilence(
  work: Promise<unknown>, calls: readonly TierCalls[], limitMs: number, clock: LoadClock,
): Promise<boolean> {
  const time = new FreeTime(clock, 0, true);
  let isOver = false;
  const over = work.finally(() => { isOver = true; });
  try {
    let [seen, seenMs] = [-1, 0];
    for (;;) {
      const answers = calls.reduce((sum, call) => sum + call.answers, 0);
      const isSilent = answers === seen && calls.some(({ underWay }) => underWay > 0);
      if (!isSilent) [seen, seenMs] = [answers, time.milliseconds];
      else if (time.milliseconds >= seenMs + limitMs) return false;
      const nextMs = time.milliseconds + limitMs / looks;
      await Promise.race([over, new Promise<void>((resolve) => { time.at(nextMs, resolve); })]);
      if (isOver) return true;
    }
  } finally {
    time.end();
    over.catch(() => { /* it is too late for it */ });
  }
}
