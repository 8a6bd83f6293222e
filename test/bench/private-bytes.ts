// Memory that only this process has, and has written to, without the mapped files of weights: their pages are the system's, and another process that
// maps them has the same. Pages of a file that is not on disk yet count as written to.

import { readFileSync } from 'node:fs';

const weights = /^.*\.(?:gguf|safetensors)$/m;

/** On Linux. */
export function privateBytes(): number {
  const mappings = readFileSync('/proc/self/smaps', 'latin1').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m).filter((mapping) => !weights.test(mapping));
  return 1_024 * mappings.reduce((sum, mapping) => sum + Number(/^Private_Dirty: +(\d+) kB$/m.exec(mapping)?.[1] ?? 0), 0);
}
