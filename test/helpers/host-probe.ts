// The parts of test/native/host_probe.cc, a program over the host driver's own sources.

import { compiledProbe, hasCompiler, runProbe } from './native-probe.js';

/** Why the probe cannot be compiled here; undefined where it can. */
export function whyNoProbe(): string | undefined {
  return hasCompiler ? undefined : 'there is no C++ compiler';
}

export function compileHostProbe(): void {
  compiledProbe('host_probe');
}

/** The facts that one part of the probe printed. */
export function hostProbe(
  what: 'fork' | 'fork-under-lock' | 'file-size' | 'open-files' | 'huge-pages' | 'memory-room' | 'memory-shares', ...given: readonly string[]
): Readonly<Record<string, string>> {
  const lines = runProbe('host_probe', [what, ...given]);
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(' ')), line.slice(line.indexOf(' ') + 1)]));
}
