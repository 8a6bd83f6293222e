// Compiles test/native/host_probe.cc with the host driver's own sources, and runs it. Needs a C++ compiler, as building
// the package does; CXX names another than c++.

import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync } from 'node:fs';
import * as path from 'node:path';

const root = path.resolve(__dirname, '..', '..');
const folder = path.join(root, 'build-test', 'native');
const probe = path.join(folder, 'host_probe');
const compiler = process.env['CXX'] ?? 'c++';

/** Why the probe cannot be compiled here; undefined where it can. */
export function whyNoProbe(): string | undefined {
  return spawnSync(compiler, ['--version']).status === 0 ? undefined : `there is no C++ compiler called ${compiler}`;
}

export function compileHostProbe(): void {
  const sources = readFileSync(path.join(root, 'native', 'sources.txt'), 'utf8').split('\n');
  const host = sources.filter((source) => source.startsWith('native/host/'));
  const flags = ['-std=c++20', '-O1', '-fno-exceptions', '-fno-rtti', '-Wall', '-Wextra', '-Inative', '-pthread'];
  mkdirSync(folder, { recursive: true });
  const made = `${probe}-${process.pid}`; // another test's process may be running the program
  run(compiler, [...flags, 'test/native/host_probe.cc', ...host, '-o', made]);
  renameSync(made, probe);
}

/** The facts that one part of the probe printed. */
export function hostProbe(
  what: 'fork' | 'file-size' | 'open-files' | 'huge-pages' | 'memory-room' | 'memory-shares', ...given: readonly string[]
): Readonly<Record<string, string>> {
  const lines = run(probe, [what, ...given]).trimEnd().split('\n');
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(' ')), line.slice(line.indexOf(' ') + 1)]));
}

function run(command: string, args: readonly string[]): string {
  const { status, signal, stdout, stderr } = spawnSync(command, args, { cwd: root, encoding: 'utf8' });
  if (status !== 0) throw new Error(`${command} ${args[0]}: ${signal ?? `exit ${status}`}\n${stderr}`);
  return stdout;
}
