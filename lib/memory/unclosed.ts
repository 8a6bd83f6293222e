// The safety net for what nobody closed: garbage collection warns once per process, with the code KV_NOT_CLOSED.

let hasWarned = false;

/** Register with a text that begins the warning ("A KvCache"), and unregister in `close`. */
export const unclosed = new FinalizationRegistry<string>((what) => {
  if (hasWarned) return;
  hasWarned = true;
  process.emitWarning(`${what} was garbage-collected without close().`, { code: 'KV_NOT_CLOSED' });
});
