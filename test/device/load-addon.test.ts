// How the addon is found, in a copy of the package that has what each test gives it, each time in a process of its own.
// Alone in its process: it loads addons by the environment.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';
import { slow } from '../runner/slow.js';

const root = path.resolve(__dirname, '..', '..');
const addon = readFileSync(process.env['VKV_ADDON'] ?? path.join(root, 'build', 'Release', 'virtual_kv.node'));
const platform = `${process.platform}-${process.arch}`;
const sumOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

let folder: string;
test.before(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'virtual-kv-copy-'));
  for (const name of ['dist', 'package.json', 'kernels/cuda']) cpSync(path.join(root, name), path.join(folder, name), { recursive: true });
  symlinkSync(path.join(root, 'node_modules'), path.join(folder, 'node_modules'));
});
test.after.always(() => rmSync(folder, { recursive: true, force: true }));

/** Puts files into the copy of the package, in place of those of the test before. */
function give({ prebuilt, sums, built }: { prebuilt?: Uint8Array; sums?: string; built?: string }): void {
  for (const name of ['prebuilds', 'build']) rmSync(path.join(folder, name), { recursive: true, force: true });
  const write = (file: string, content: Uint8Array | string | undefined): void => {
    if (content === undefined) return;
    mkdirSync(path.dirname(path.join(folder, file)), { recursive: true });
    writeFileSync(path.join(folder, file), content);
  };
  write(`prebuilds/${platform}/virtual_kv.node`, prebuilt);
  write('prebuilds/SHA256SUMS', sums);
  write('build/Release/virtual_kv.node', built);
}

interface Answer {
  readonly ok?: unknown;
  readonly code?: string;
  readonly message?: string;
  readonly details?: { readonly tried: readonly { readonly path: string; readonly reason: string }[] };
}

/** What a program says that runs with the copy as `kv`, or its error; the process must end well. */
function ask(program: string, { as, environment = {} }: { as?: string; environment?: NodeJS.ProcessEnv } = {}): Answer {
  const { VKV_ADDON: _, ...outer } = process.env;
  const fake = as === undefined ? '' : `Object.defineProperty(process, 'platform', { value: '${as}' });`;
  const script = `${fake} const internal = (name) => require('./dist/' + name + '.js');
    (async () => { const kv = require('./dist/index.js'); ${program} })()
      .then((ok) => ({ ok }), ({ code, message, details }) => ({ code, message, details })).then((all) => console.log(JSON.stringify(all)));`;
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, ['-e', script], { cwd: folder, encoding: 'utf8', env: { ...outer, ...environment } });
  if (status !== 0) throw new Error(`${signal ?? status}: ${stderr}`);
  return JSON.parse(stdout) as Answer;
}

const openDriver = "const driver = kv.Driver.open('host'); driver.close(); return driver.kind;";

test.serial('a prebuilt addon with the checksum of its release is loaded', (t) => {
  give({ prebuilt: addon, sums: `${sumOf(addon)}  ${platform}/virtual_kv.node\n` });
  t.deepEqual(ask(openDriver), { ok: 'host' });
});

slow('starts processes that load the addon')('a prebuilt addon that was cut short, or is in no list of checksums, is an error and not a dead process', (t) => {
  const short = addon.subarray(0, Math.floor(addon.length / 2));
  give({ prebuilt: short, sums: `${sumOf(addon)}  ${platform}/virtual_kv.node\n` });
  const { code, details } = ask(openDriver);
  t.is(code, 'KV_ADDON_NOT_FOUND');
  t.is(details?.tried.at(-1)?.reason, `its SHA-256 is ${sumOf(short)}, and prebuilds/SHA256SUMS has ${sumOf(addon)}`);

  give({ prebuilt: addon, sums: `${sumOf(addon)}  linux-other/virtual_kv.node\n` });
  t.regex(ask(openDriver).details?.tried.at(-1)?.reason ?? '', /SHA256SUMS has none/);
});

slow('starts processes that load the addon')('what was built from source goes before what was prebuilt, and where it does not load, the prebuilt one is taken', (t) => {
  const sums = `${sumOf(addon)}  ${platform}/virtual_kv.node\n`;
  give({ prebuilt: addon, sums, built: 'no addon' });
  t.deepEqual(ask(openDriver), { ok: 'host' });

  give({ built: 'no addon' });
  const { code, details } = ask(openDriver);
  t.is(code, 'KV_ADDON_NOT_FOUND');
  t.deepEqual(details?.tried.map(({ path: file }) => path.relative(folder, file)), ['build/Release/virtual_kv.node', `prebuilds/${platform}/virtual_kv.node`]);
  t.regex(details?.tried[0]?.reason ?? '', /file too short|invalid ELF header/);
  t.is(details?.tried[1]?.reason, 'no such file');
});

test.serial('without an addon the error says for which platforms there is a prebuilt one, and what to do', (t) => {
  give({});
  const { code, message } = ask(openDriver);
  t.is(code, 'KV_ADDON_NOT_FOUND');
  t.regex(message ?? '', /linux-x64 and linux-arm64 .*`npm rebuild virtual-kv`/);
});

for (const as of ['darwin', 'win32']) {
  slow('starts processes that load the addon')(`on ${as} what needs the addon says that there is none, and the rest works`, (t) => {
    give({});
    const { code, message } = ask(openDriver, { as });
    t.is(code, 'KV_ADDON_NOT_FOUND');
    t.regex(message ?? '', new RegExp(`^There is no native addon for ${as}-\\w+ .* Linux only, prebuilt for linux-x64 and linux-arm64\\.`));
    t.is(ask("new kv.KvCache({ model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24 });", { as }).code, 'KV_ADDON_NOT_FOUND');

    const model = "{ layers: 2, kvHeads: 2, headDim: 64, dtype: 'float16' }";
    t.deepEqual(ask(`return kv.computeLayout({ model: ${model}, slots: 4, maxTokens: 4096, pageBytes: 65536, layout: 'per-layer' }).reservations.length;`, { as }), { ok: 4 });
    t.is((ask(`return kv.prefixBlockKeys({ tokens: Int32Array.from({ length: 32 }, (_, at) => at), blockTokens: 16 }).length;`, { as }).ok as number), 2);
    t.deepEqual(ask(`
      const lines = ['{"timestamp": 0, "input_length": 5, "output_length": 2}', '{"timestamp": 1, "input_length": 6, "output_length": 3}'];
      const { TraceReader } = internal('replay/trace-reader');
      let tokens = 0;
      for await (const { promptTokens } of new TraceReader({ source: require('node:stream').Readable.from([Buffer.from(lines.join('\\n'))]) })) tokens += promptTokens;
      return tokens;`, { as }), { ok: 11 });

    writeFileSync(path.join(folder, 'fake.cjs'), `Object.defineProperty(process, 'platform', { value: '${as}' });`);
    const plan = spawnSync(process.execPath, ['--require', './fake.cjs', 'dist/cli/vkv.js',
      'plan', '--layers', '32', '--kv-heads', '8', '--head-dim', '128', '--dtype', 'float16', '--tokens', '8192', '--json'], { cwd: folder, encoding: 'utf8' });
    t.is(plan.status, 0, plan.stderr);
    t.is((JSON.parse(plan.stdout) as { tokenBytes: number }).tokenBytes, 2048);
  });
}
