// The safety net for objects that were never closed: when one is garbage-collected, gives its memory back and warns once per process,
// with the code KV_NOT_CLOSED.

import type { UserMemory } from './weak-users.js';

export interface Unclosed {
  /** Begins the warning: "A KvCache". */
  readonly what: string;
  /** Gives back the memory of the collected object, unless that has been done. Must not refer to the object. */
  readonly giveBack: () => void;
}

/** For an object that holds nothing but `memory` of the driver. */
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

/** A closable object registers itself when it is made, and unregisters in `close`. */
export const unclosed = new FinalizationRegistry<Unclosed>(({ what, giveBack }) => {
  try {
    giveBack();
  } catch {
    // no caller can be told; WeakUsers tries again at the next use of the pool or driver, at the latest when that is closed
  }
  if (hasWarned) return;
  hasWarned = true;
  process.emitWarning(`${what} was garbage-collected without close().`, { code: 'KV_NOT_CLOSED' });
});
