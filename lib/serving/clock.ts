// Clock: the time of a scheduler's deadlines and timings, and alarms in it. Both are options, so that tests let time pass as
// they want; what those functions answer is checked here.

import { createError } from '../base/errors.js';
import { after } from '../cache/wait.js';

/** Calls `wake` once, in about `delayMs` ms; returns what cancels that. */
export type Timer = (wake: () => void, delayMs: number) => () => void;

export interface Clock {
  /** Throws KV_INVALID_OPTION, and what the option's function throws. */
  now(): number;
  /** Throws as `now`. */
  readonly after: Timer;
}

export const systemTimer: Timer = after;

/** A clock of the options `now` and `timer` of a scheduler. */
export function checkedClock(now: () => number, timer: Timer): Clock {
  return {
    now: () => {
      const ms = now();
      if (Number.isFinite(ms)) return ms;
      throw wrong('now', 'a function that returns a number of milliseconds', ms);
    },
    after: (wake, delayMs) => {
      const cancel = timer(wake, Math.max(0, delayMs));
      if (typeof cancel === 'function') return cancel;
      throw wrong('timer', 'a function that returns what cancels the timer', cancel);
    },
  };
}

function wrong(option: string, expected: string, received: unknown): Error {
  return createError('KV_INVALID_OPTION', { reason: 'type', owner: 'SchedulerOptions', option, expected, received });
}
