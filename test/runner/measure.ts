// Loaded by AVA before the test files of a process (ava.config.mjs, `require`): puts each test's file before its title, since a
// bundle has many files, and writes down the CPU time that each test takes, the process's own and that of child processes it
// waited for. Tests of a process run one after another, so that the time of one is its own.

import { appendFileSync, readFileSync } from 'node:fs';
import Module = require('node:module');
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';

type Body = (...args: readonly unknown[]) => unknown;
type Chain = ((...args: unknown[]) => unknown) & Readonly<Record<string, unknown>>;

const root = path.resolve(__dirname, '..');
/** Where costs go, one JSON object a line; undefined: nobody asks. */
const costs = process.env['VKV_TEST_COSTS'];
/** Of the clock of /proc: 100 a second on every Linux that Node runs on. */
const tickMs = 10;

// What tests and their child processes print has no colours, on a terminal neither.
process.env['NO_COLOR'] = '1';
delete process.env['FORCE_COLOR'];

/** The test file whose code is running at the top level: of a bundle the one that is being loaded. */
let current = '';
let isBundle = false;

/** Loads a test file into this process, so that its tests become those of the bundle. */
export function loadTests(file: string): void {
  current = file;
  // eslint-disable-next-line @typescript-eslint/no-require-imports -- when it is its turn
  measure('(loading)', () => require(path.join(root, `${file}.test.js`)) as unknown);
}

/** CPU ms of this process and of the children that have ended. */
function cpuMs(): number {
  const own = process.resourceUsage();
  const stat = readFileSync('/proc/self/stat', 'utf8');
  const [userTicks, systemTicks] = stat.slice(stat.lastIndexOf(')') + 2).split(' ').slice(13, 15).map(Number);
  return (own.userCPUTime + own.systemCPUTime) / 1e3 + (userTicks! + systemTicks!) * tickMs;
}

function measure<T>(title: string, run: () => T, slow?: string): T {
  if (costs === undefined) return run();
  const file = current;
  const begin = cpuMs();
  const note = (): void => appendFileSync(costs, `${JSON.stringify({ file, title, cpuMs: Math.round(cpuMs() - begin), slow })}\n`);
  let result: T;
  try {
    result = run();
  } catch (error) {
    note();
    throw error;
  }
  if (result instanceof Promise) return result.finally(note) as T;
  note();
  return result;
}

/** What a wrapped chain declares. */
interface Declared {
  readonly isHook?: boolean;
  /** Why its tests are slow. */
  readonly slow?: string;
  /** Its tests are not wanted. */
  readonly isLeftOut?: boolean;
}

/** Chains by their wraps. */
const wrapped = new WeakMap<object, Chain>();

/** `serial`: what the root of all chains hands out instead of itself, so that the CPU time of a process is that of one test. */
function wrap(chain: Chain, declared: Declared, serial = chain): Chain {
  const proxy = new Proxy(serial, {
    apply(target, self, [title, body, ...rest]: unknown[]) {
      if (declared.isHook === true || typeof title !== 'string') return Reflect.apply(target, self, [title, body, ...rest]);
      if (declared.isLeftOut === true) return undefined;
      const file = current;
      const measured = typeof body !== 'function' ? body : (...args: readonly unknown[]) => {
        current = file;
        return measure(title, () => (body as Body)(...args), declared.slow);
      };
      return Reflect.apply(target, self, [isBundle ? `${file}: ${title}` : title, measured, ...rest]);
    },
    get(target, name) {
      const value = target[name as string] ?? chain[name as string];
      if (typeof value !== 'function' || name === 'macro' || name === 'serial') return name === 'serial' ? proxy : value;
      return wrap(value as Chain, { ...declared, isHook: declared.isHook === true || /^(before|after)/.test(name as string) });
    },
  });
  wrapped.set(proxy, serial);
  return proxy;
}

/** The same chain, whose tests are declared slow; left out: they are not even named. */
export function declareSlow<T extends object>(chain: T, slow: string, isLeftOut: boolean): T {
  return wrap(wrapped.get(chain)!, { slow, isLeftOut }) as unknown as T;
}

/** With the process's test runner, which knows the file that AVA runs. */
function begin(chain: Chain): Chain {
  const { file } = chain['meta'] as { readonly file: string };
  const name = path.relative(root, fileURLToPath(file)).replace(/\.test\.js$/, '');
  isBundle = name.startsWith('bundles');
  if (!isBundle) current = name;
  return wrap(chain, {}, chain['serial'] as Chain);
}

const hooks = Module as unknown as { _load(request: string, ...rest: unknown[]): unknown };
const load = hooks._load.bind(hooks);
let ours: Chain | undefined;
hooks._load = (request, ...rest) => {
  const loaded = load(request, ...rest);
  return request === 'ava' ? ours ??= begin(loaded as Chain) : loaded;
};
