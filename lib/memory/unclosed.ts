// The safety net for what nobody closed: garbage collection gives its memory back and warns once per process, with the code
// KV_NOT_CLOSED.

export interface Unclosed {
  /** Begins the warning: "A KvCache". */
  readonly what: string;
  /** Gives back what the collected object had, if nobody has. Must not refer to it. */
  readonly giveBack: () => void;
}

let hasWarned = false;

/** Register, and unregister in `close`. */
export const unclosed = new FinalizationRegistry<Unclosed>(({ what, giveBack }) => {
  try {
    giveBack();
  } catch {
    // nobody is left to be told; what stays is given back with its driver
  }
  if (hasWarned) return;
  hasWarned = true;
  process.emitWarning(`${what} was garbage-collected without close().`, { code: 'KV_NOT_CLOSED' });
});
