// The safety net for what nobody closed: garbage collection gives its memory back and warns once per process, with the code
// KV_NOT_CLOSED.

import type { UserMemory } from './weak-users.js';

export interface Unclosed {
  /** Begins the warning: "A KvCache". */
  readonly what: string;
  /** Gives back what the collected object had, if nobody has. Must not refer to it. */
  readonly giveBack: () => void;
}

/** For a user of a driver that has all it holds in `memory`. */
export function giveBackTo(driver: { removeUser(memory: UserMemory): void }, what: string, memory: UserMemory): Unclosed {
  return {
    what,
    giveBack: () => {
      memory.close();
      driver.removeUser(memory);
    },
  };
}

let hasWarned = false;

/** Register, and unregister in `close`. */
export const unclosed = new FinalizationRegistry<Unclosed>(({ what, giveBack }) => {
  try {
    giveBack();
  } catch {
    // nobody is left to be told; what uses the memory's pool or driver next tries again, at the latest when that is closed
  }
  if (hasWarned) return;
  hasWarned = true;
  process.emitWarning(`${what} was garbage-collected without close().`, { code: 'KV_NOT_CLOSED' });
});
