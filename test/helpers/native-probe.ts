// Compiles a C++ program of test/native with the sources it is about, and runs it. Needs a C++ compiler, as building the
// package does; CXX names another than c++. VKV_TEST_SANITIZE names the sanitizers that the program is compiled with
// (scripts/sanitize.sh): one that only has their runtime loaded first hides the order that its atomics make.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync } from 'node:fs';
import * as path from 'node:path';

const root = path.resolve(__dirname, '..', '..');
const folder = path.join(root, 'build-test', 'native');
// eslint-disable-next-line @typescript-eslint/no-require-imports -- what the scripts use, too
const { nativeHash, objectsOf } = require(path.join(root, 'scripts', 'native-hash.cjs')) as {
  nativeHash(compiler: string, more: unknown): string;
  objectsOf(sources: readonly string[]): readonly string[];
};
const compiler = process.env['CXX'] ?? 'c++';
const sanitize = process.env['VKV_TEST_SANITIZE'];
const common = ['-std=c++20', '-O1', '-fno-exceptions', '-fno-rtti', '-Wall', '-Wextra', '-Inative', '-I.', '-pthread'];
const sanitizing = sanitize === undefined ? [] : ['-g', `-fsanitize=${sanitize}`];

const version = spawnSync(compiler, ['--version'], { encoding: 'utf8' });
export const hasCompiler = version.status === 0;
export const isGcc = hasCompiler && version.stdout.includes('Free Software Foundation');

/** What a program is made of besides test/native/<name>.cc. */
interface Probe {
  /** Sources of native/sources.txt whose paths start with one of these. */
  readonly sources: readonly string[];
  /** Flags for its own file alone, which the linker does not see. */
  readonly instrumented?: readonly string[];
  /** It runs a kernel's threads as stacks that it switches between, which sanitizers cannot follow: it is compiled without. */
  readonly switchesStacks?: boolean;
  readonly needsGcc?: boolean;
}

const probes = {
  arena_probe: { sources: ['native/host/', 'native/pinned_arena.cc'] },
  crc32c_probe: { sources: ['native/crc32c'] },
  cuda_probe: { sources: ['native/cuda/', 'native/mock/'] },
  host_probe: { sources: ['native/host/'] },
  host_stream_probe: { sources: ['native/host/host_stream'] },
  structs_probe: { sources: [] },
  sync_timer_probe: { sources: ['native/store/sync_timer.cc'] },
  mock_probe: { sources: ['native/mock/', 'native/cuda/results.cc'] },
  cpu_attention_probe: { sources: ['kernels/cpu/kernel_set_cpu.cc', 'kernels/cpu/simd_', 'kernels/reference.cc'] },
  kernels_probe: { sources: ['kernels/cuda/launches.cc', 'kernels/reference.cc'], switchesStacks: true },
  dense_probe: {
    sources: ['kernels/cuda/launches.cc', 'kernels/dense/cuda/dense_launches.cc', 'kernels/dense/dense_reference.cc'], switchesStacks: true,
  },
  // Structures stay whole, and every read and write calls the program.
  banks_probe: { sources: ['kernels/cuda/launches.cc'], instrumented: ['-fsanitize=thread', '-fno-tree-sra'], switchesStacks: true, needsGcc: true },
} as const satisfies Readonly<Record<string, Probe>>;

export type ProbeName = keyof typeof probes;

/** Where programs are, by name. */
const compiled = new Map<ProbeName, string>();

/** The program, compiled unless it was: the runner compiles all of them before the tests (test/runner/build-natives.ts). */
export function compiledProbe(name: ProbeName): string {
  const { sources: prefixes, instrumented = [], switchesStacks = false }: Probe = probes[name];
  const flags = switchesStacks ? common : [...common, ...sanitizing];
  const probe = compiled.get(name) ?? path.join(folder, `${name}-${nativeHash(compiler, [flags, prefixes, instrumented]).slice(0, 16)}`);
  compiled.set(name, probe);
  if (existsSync(probe)) return probe;
  const sources = readFileSync(path.join(root, 'native', 'sources.txt'), 'utf8').split(/\r?\n/)
    .filter((source) => prefixes.some((prefix) => source.startsWith(prefix)));
  mkdirSync(folder, { recursive: true });
  const made = `${probe}.${process.pid}`; // complete before it has its name
  if (instrumented.length > 0) run(compiler, [...flags, ...instrumented, '-c', `test/native/${name}.cc`, '-o', `${made}.o`]);
  // The addon's objects have its sanitizers.
  const shared = switchesStacks && sanitizing.length > 0 ? sources : objectsOf(sources);
  run(compiler, [...flags, instrumented.length > 0 ? `${made}.o` : `test/native/${name}.cc`, ...shared, '-o', made, '-ldl']);
  renameSync(made, probe);
  return probe;
}

/** Programs that can be compiled here. */
export function probeNames(): readonly ProbeName[] {
  const names = Object.keys(probes) as ProbeName[];
  return names.filter((name) => hasCompiler && (isGcc || (probes[name] as Probe).needsGcc !== true));
}

/** The lines that it prints. */
export function runProbe(name: ProbeName, args: readonly string[] = []): readonly string[] {
  return run(compiledProbe(name), args).trimEnd().split('\n');
}

function run(command: string, args: readonly string[]): string {
  const { status, signal, stdout, stderr } = spawnSync(command, args, { cwd: root, encoding: 'utf8' });
  if (status !== 0) throw new Error(`${command} ${args[0] ?? ''}: ${signal ?? `exit ${status}`}\n${stderr}`);
  return stdout;
}
