// Compiles a C++ program of test/native with the sources it is about, and runs it. Needs a C++ compiler, as building the
// package does; CXX names another than c++. VKV_TEST_SANITIZE names the sanitizers that the program is compiled with
// (scripts/sanitize.sh): one that only has their runtime loaded first hides the order that its atomics make.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync } from 'node:fs';
import * as path from 'node:path';

const root = path.resolve(__dirname, '..', '..');
const folder = path.join(root, 'build-test', 'native');
// eslint-disable-next-line @typescript-eslint/no-require-imports -- what the scripts use, too
const { nativeHash } = require(path.join(root, 'scripts', 'native-hash.cjs')) as { nativeHash(compiler: string, more: unknown): string };
const compiler = process.env['CXX'] ?? 'c++';
const sanitize = process.env['VKV_TEST_SANITIZE'];
const common = ['-std=c++20', '-O1', '-fno-exceptions', '-fno-rtti', '-Wall', '-Wextra', '-Inative', '-I.', '-pthread'];
const sanitizing = sanitize === undefined ? [] : ['-g', `-fsanitize=${sanitize}`];

const version = spawnSync(compiler, ['--version'], { encoding: 'utf8' });
export const hasCompiler = version.status === 0;
export const isGcc = hasCompiler && version.stdout.includes('Free Software Foundation');

/** Where programs are, by name. */
const probes = new Map<string, string>();

/** What is special about a program. */
interface ProbeTraits {
  /** Flags for its own file alone, which the linker does not see. */
  readonly instrumented?: readonly string[];
  /** It runs a kernel's threads as stacks that it switches between, which sanitizers cannot follow: it is compiled without. */
  readonly switchesStacks?: boolean;
}

/** The program of test/native/`name`.cc and the native sources whose paths start with one of `prefixes`, compiled unless it was. */
export function compiledProbe(name: string, prefixes: readonly string[], { instrumented = [], switchesStacks = false }: ProbeTraits = {}): string {
  const flags = switchesStacks ? common : [...common, ...sanitizing];
  const probe = probes.get(name) ?? path.join(folder, `${name}-${nativeHash(compiler, [flags, prefixes, instrumented]).slice(0, 16)}`);
  probes.set(name, probe);
  if (existsSync(probe)) return probe;
  const sources = readFileSync(path.join(root, 'native', 'sources.txt'), 'utf8').split(/\r?\n/)
    .filter((source) => prefixes.some((prefix) => source.startsWith(prefix)));
  mkdirSync(folder, { recursive: true });
  const made = `${probe}.${process.pid}`; // complete before it has its name
  if (instrumented.length > 0) run(compiler, [...flags, ...instrumented, '-c', `test/native/${name}.cc`, '-o', `${made}.o`]);
  run(compiler, [...flags, instrumented.length > 0 ? `${made}.o` : `test/native/${name}.cc`, ...sources, '-o', made, '-ldl']);
  renameSync(made, probe);
  return probe;
}

/** The lines that it prints. */
export function runProbe(name: string, prefixes: readonly string[], args: readonly string[] = [], traits: ProbeTraits = {}): readonly string[] {
  return run(compiledProbe(name, prefixes, traits), args).trimEnd().split('\n');
}

function run(command: string, args: readonly string[]): string {
  const { status, signal, stdout, stderr } = spawnSync(command, args, { cwd: root, encoding: 'utf8' });
  if (status !== 0) throw new Error(`${command} ${args[0] ?? ''}: ${signal ?? `exit ${status}`}\n${stderr}`);
  return stdout;
}
