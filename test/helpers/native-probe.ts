// Compiles a C++ program of test/native with the sources it is about, and runs it. Needs a C++ compiler, as building the
// package does; CXX names another than c++.

import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync } from 'node:fs';
import * as path from 'node:path';

const root = path.resolve(__dirname, '..', '..');
const compiler = process.env['CXX'] ?? 'c++';
const flags = ['-std=c++20', '-O1', '-fno-exceptions', '-fno-rtti', '-Wall', '-Wextra', '-Inative', '-I.', '-pthread'];

const version = spawnSync(compiler, ['--version'], { encoding: 'utf8' });
export const hasCompiler = version.status === 0;
export const isGcc = hasCompiler && version.stdout.includes('Free Software Foundation');

/**
 * The lines that test/native/`name`.cc prints, with native sources whose paths start with one of `prefixes`. `instrumented`: flags for that
 * file alone, which the linker does not see.
 */
export function runProbe(
  name: string, prefixes: readonly string[], args: readonly string[] = [], instrumented: readonly string[] = [],
): readonly string[] {
  const folder = path.join(root, 'build-test', 'native');
  const probe = path.join(folder, name);
  const sources = readFileSync(path.join(root, 'native', 'sources.txt'), 'utf8').split(/\r?\n/)
    .filter((source) => prefixes.some((prefix) => source.startsWith(prefix)));
  mkdirSync(folder, { recursive: true });
  const made = `${probe}-${process.pid}`; // another test's process may be running the program
  if (instrumented.length > 0) run(compiler, [...flags, ...instrumented, '-c', `test/native/${name}.cc`, '-o', `${made}.o`]);
  run(compiler, [...flags, instrumented.length > 0 ? `${made}.o` : `test/native/${name}.cc`, ...sources, '-o', made, '-ldl']);
  renameSync(made, probe);
  return run(probe, args).trimEnd().split('\n');
}

function run(command: string, args: readonly string[]): string {
  const { status, signal, stdout, stderr } = spawnSync(command, args, { cwd: root, encoding: 'utf8' });
  if (status !== 0) throw new Error(`${command} ${args[0] ?? ''}: ${signal ?? `exit ${status}`}\n${stderr}`);
  return stdout;
}
