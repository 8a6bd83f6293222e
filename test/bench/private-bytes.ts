// Memory that only one process has, and has written to, without the mapped files of weights: their pages are the system's, and another process that
// maps them has the same. Pages of a file that is not on disk yet count as written to.

import { readFileSync } from 'node:fs';

const weights = /^.*\.(?:gguf|safetensors)$/m;

/** Of this process, or of another one; on Linux. */
export function privateBytes(pid: number | 'self' = 'self'): number {
  const mappings = readFileSync(`/proc/${pid}/smaps`, 'latin1').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m).filter((mapping) => !weights.test(mapping));
  return 1_024 * mappings.reduce((sum, mapping) => sum + Number(/^Private_Dirty: +(\d+) kB$/m.exec(mapping)?.[1] ?? 0), 0);
}
