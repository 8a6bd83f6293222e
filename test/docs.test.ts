import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';
import { Registry } from 'prom-client';

import { evictionPolicyNames } from '#internal/prefix/index.js';
import * as kv from 'virtual-kv';
import { isKvError, layoutKinds, OnlineScheduler, type Sequence } from 'virtual-kv';
import { registerMetrics, registerServingMetrics } from 'virtual-kv/prometheus';

import { cacheTest } from './helpers/cache.js';
import { costly } from './runner/slow.js';

const root = path.resolve(__dirname, '..');
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');

/** The first code block of a document below a heading. */
const blockOf = (file: string, heading: string): string => new RegExp(`^#+ ${heading}\\n.*?\`\`\`\\w+\\n(.*?)\`\`\``, 'ms').exec(read(file))![1]!;

/** Public options interfaces and where they are; their fields must each stand once in the table of that name. */
const documented = {
  KvCacheOptions: 'lib/kv-cache/kv-cache-options.ts',
  AcquireOptions: 'lib/kv-cache/acquire-options.ts',
  SideTensorShape: 'lib/side/open-side-tensors.ts',
  DeviceRows: 'lib/side/side-rows.ts',
  PrefixCacheOptions: 'lib/kv-cache/kv-cache-options.ts',
  PrefixEventsOptions: 'lib/kv-cache/kv-cache-options.ts',
  SelectionOptions: 'lib/tiers/selection/selected-text.ts',
  PrefixResetOptions: 'lib/kv-cache/prefixes.ts',
  PrefixBlockKeysOptions: 'lib/kv-cache/prefix-block-keys.ts',
  SegmentedLruOptions: 'lib/prefix/eviction/slru.ts',
  ImportanceEvictionOptions: 'lib/prefix/eviction/importance.ts',
  LeastFrequentlyUsedOptions: 'lib/prefix/eviction/lfu.ts',
  PriorityOptions: 'lib/prefix/eviction/priority.ts',
  MetricsOptions: 'lib/prometheus/metrics-options.ts',
  LlamaEngineOptions: 'lib/llama/engine-options.ts',
  EncodeOptions: 'lib/llama/tokenizer-arguments.ts',
  BackgroundTokenizerOptions: 'lib/llama/background-tokenizer.ts',
  OnnxDecoderOptions: 'lib/onnx/decoder.ts',
  OnnxModelOptions: 'lib/onnx/decoder.ts',
  InstallOptions: 'lib/transformers/install.ts',
  ModelServerOptions: 'lib/server/server-options.ts',
  ListenOptions: 'lib/server/model-server.ts',
  WaitOptions: 'lib/device/wait.ts',
  ReleaseOptions: 'lib/cache/slot-fences.ts',
  CommitOptions: 'lib/cache/slot-fences.ts',
  PagePoolOptions: 'lib/device/page-pool.ts',
  DriverOptions: 'lib/device/driver.ts',
  LayoutOptions: 'lib/layout/layout.ts',
  ModelShape: 'lib/layout/model-shape.ts',
  SchedulerOptions: 'lib/serving/scheduler-options.ts',
  OfflineSchedulerOptions: 'lib/serving/offline.ts',
  OnlineSchedulerOptions: 'lib/serving/online.ts',
  GenerationRequest: 'lib/serving/request.ts',
  GenerationResult: 'lib/serving/generation-result.ts',
  SamplerOptions: 'lib/serving/sampling.ts',
  MockDeviceOptions: 'lib/device/mock-device.ts',
  KernelsOptions: 'lib/kernels/kernels-options.ts',
  AttentionRules: 'lib/kernels/attention-rules.ts',
  CaptureOptions: 'lib/kernels/captured-steps.ts',
  SequenceSpans: 'lib/kernels/step-spans.ts',
  TokenCopy: 'lib/kernels/token-copies.ts',
  DenseKernelsOptions: 'lib/kernels/dense/dense-options.ts',
  Product: 'lib/kernels/dense/dense-operands.ts',
  Norm: 'lib/kernels/dense/dense-operands.ts',
  DeviceMemoryOptions: 'lib/device/device-memory.ts',
  FailCallOptions: 'lib/device/mock-device.ts',
  EncoderCacheOptions: 'lib/side/encoder-options.ts',
  EncoderKindOptions: 'lib/side/encoder-options.ts',
  EncoderAcquireOptions: 'lib/side/encoder-options.ts',
  RedisTierOptions: 'lib/tiers/redis/redis-options.ts',
  RedisBreakerOptions: 'lib/tiers/redis/redis-options.ts',
} as const;

/** Fields of an interface, and of the one it extends when that is in the same file. */
function fieldsOf(name: string, file: string): string[] {
  const source = read(file);
  const declared = new RegExp(`^export interface ${name}(?: extends (\\w+))? {\\n(.*?)^}`, 'ms').exec(source);
  if (declared === null) return [];
  const [, base, body] = declared;
  const own = [...body!.matchAll(/^ {2}readonly (\w+)\??:/gm)].map((match) => match[1]!);
  return base === undefined ? own : [...fieldsOf(base, file), ...own];
}

function rowsOf(name: string): string[] {
  const section = read('docs/api.md').split(/^#+ /m).find((part) => part.startsWith(`${name}\n`)) ?? '';
  return [...section.matchAll(/^\| `(\w+)` \|/gm)].map((match) => match[1]!);
}

for (const [name, file] of Object.entries(documented)) {
  test(`docs/api.md has every option of ${name} once, and no other`, (t) => {
    const fields = fieldsOf(name, file);
    t.true(fields.length > 0);
    t.deepEqual(rowsOf(name).toSorted(), fields.toSorted());
  });
}

test('docs/api.md lists every exported name, as `npm run docs:names` writes it', (t) => {
  const { status, stdout, stderr } = spawnSync(process.execPath, ['scripts/api-names.mjs', '--print'], { encoding: 'utf8', cwd: root });
  t.is(status, 0, stderr);
  t.true(stdout === read('docs/api.md'), 'run `npm run docs:names`');
  for (const name of Object.keys(kv)) t.true(stdout.includes(`\`${name}\``), name);
});

test('every link within docs/api.md leads to a heading', (t) => {
  const document = read('docs/api.md');
  const anchors = new Set([...document.matchAll(/^#+ (.*)$/gm)].map(([, heading]) => heading!.toLowerCase().replace(/[^\w\- ]/g, '').replaceAll(' ', '-')));
  for (const [, anchor] of document.matchAll(/\]\(#([^)]*)\)/g)) t.true(anchors.has(anchor!), anchor);
});

test('docs/api.md names every field of a layout', (t) => {
  const section = read('docs/api.md').split(/^## /m).find((part) => part.startsWith('Layouts\n')) ?? '';
  const fields = [
    ...['Layout', 'ConstantSetLayout'].flatMap((name) => fieldsOf(name, 'lib/layout/layout.ts')),
    ...['RowLayout', 'LayerSetLayout'].flatMap((name) => fieldsOf(name, 'lib/layout/set-layout.ts')),
  ];
  for (const field of ['commonTokenBytes', 'layoutReason', 'facePages']) t.true(fields.includes(field), field);
  for (const field of fields) t.true(section.includes(`\`${field}\``) || section.includes(`\`${field}(`), field);
});

test('docs/api.md and the README name every layout and every eviction policy, and the package exports each policy', (t) => {
  const layouts = [...layoutKinds, 'auto'].map((kind) => `\`'${kind}'\``).join(', ');
  t.is(read('docs/api.md').split(`\n| \`layout\` | ${layouts} |`).length, 3, 'the options of a cache, and those of a layout');
  const [, shipped] = /^\| eviction \|.*\| ([^|]+) \|$/m.exec(read('docs/api.md'))!;
  t.deepEqual([...shipped!.matchAll(/`(\w+)\(/g)].map(([, name]) => name), [...evictionPolicyNames]);
  for (const name of evictionPolicyNames) {
    t.regex(read('docs/eviction-policies.md'), new RegExp(`^\\| \`${name}\\(`, 'm'));
    t.is(typeof (kv as Readonly<Record<string, unknown>>)[name], 'function', name);
  }
  t.true(read('README.md').includes(`\`--policy ${evictionPolicyNames.join('|')}\``));
});

cacheTest('docs/api.md has every metric once, with its kind and its label', {}, (t, { cache }) => {
  const section = read('docs/api.md').split(/^#+ /m).find((part) => part.startsWith('Metrics\n')) ?? '';
  const rows = [...section.matchAll(/^\| `(\w+)` \| (gauge|counter|histogram) \| (?:`(\w+)`: [^|]+)? ?\|/gm)];
  const register = new Registry();
  registerMetrics(cache, { register, prefix: 'x' });
  const metrics = register.getMetricsAsArray() as unknown as { name: string; type: string; labelNames: readonly string[] }[];
  t.deepEqual(rows.map(([, ...columns]) => columns), metrics.map(({ name, type, labelNames: [label] }) => [name.slice(1), type, label]));
});

cacheTest('docs/api.md has every serving metric once, with its kind and its label', {}, async (t, { cache }) => {
  const section = read('docs/api.md').split(/^#+ /m).find((part) => part.startsWith('Serving metrics\n')) ?? '';
  const rows = [...section.matchAll(/^\| `(\w+)` \| (gauge|counter|histogram) \| (?:`(\w+)`: [^|]+)? ?\|/gm)];
  const register = new Registry();
  const scheduler = new OnlineScheduler({ cache, engine: { vocabularyTokens: 1, prefill: () => ({ tokens: new Int32Array(1) }), decode: () => ({ tokens: new Int32Array(1) }) } });
  registerServingMetrics(scheduler, { register, prefix: 'x' });
  const metrics = register.getMetricsAsArray() as unknown as { name: string; type: string; labelNames: readonly string[] }[];
  t.deepEqual(rows.map(([, ...columns]) => columns), metrics.map(({ name, type, labelNames: [label] }) => [name.slice(1), type, label]));
  await scheduler.close();
});

test('no document names a file that is not there', (t) => {
  const documents = ['README.md', 'CHANGELOG.md', ...readdirSync(path.join(root, 'docs')).map((name) => `docs/${name}`)];
  for (const document of documents.filter((name) => name.endsWith('.md'))) {
    for (const [, target] of read(document).matchAll(/\]\(([^)#:]+)(?:#[^)]*)?\)/g)) {
      t.notThrows(() => readFileSync(path.resolve(root, path.dirname(document), target!)), `${document} → ${target}`);
    }
  }
});

test('the code in the README is the example that runs', (t) => {
  const code = read('examples/quick-start.mjs').split('\n').filter((line) => !/^\/\/ /.test(line)).join('\n').trim();
  t.true(read('README.md').includes(code));
});

test('the smallest engine in docs/first-engine.md is the example that runs', (t) => {
  const code = read('examples/first-engine.ts').split('\n').filter((line) => !/^\/\/ /.test(line)).join('\n').trim();
  t.true(read('docs/first-engine.md').includes(`\`\`\`ts\n${code}\n\`\`\``));
});

test('the loop of docs/first-engine.md that streams text is in the example that runs', (t) => {
  const plain = (text: string): string => text.replace(/^ +/gm, '');
  t.true(plain(read('examples/text-stream.ts')).includes(plain(blockOf('docs/first-engine.md', 'Text as it comes'))));
});

cacheTest('names and roles of tensors are those of docs/first-engine.md', {}, (t, { cache }) => {
  const section = read('docs/first-engine.md').split(/^## /m).find((part) => part.startsWith('Where K and V lie'))!;
  t.deepEqual(cache.tensors.map(({ name }) => name), ['layer.0.key', 'layer.0.value', 'layer.1.key', 'layer.1.value']);
  t.deepEqual(cache.tensors.map(({ role }) => role), ['key', 'value', 'key', 'value']);
  for (const { name, strides, index } of cache.tensors) {
    if (index < 3) t.true(section.includes(`\`${name}\``), name);
    for (const stride of Object.keys(strides)) t.true(section.includes(`\`${stride}\``), stride);
  }
  t.true(section.includes("`'key'`, `'value'` or `'latent'`"));
  t.true(read('README.md').includes('layer.0.key ') && !/layer\.\d\.[KV]\b/.test(read('README.md')));
});

for (const [file, heading] of [['docs/cache.md', 'A step'], ['docs/plan.md', 'In a program']] as const) {
  test(`the program of ${file} runs as it is printed`, (t) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', blockOf(file, heading)], { encoding: 'utf8', cwd: root });
    t.is(status, 0, stderr);
    t.regex(stdout, /tokens/);
  });
}

costly('starts the program twice')('the program of docs/tiers.md finds after a restart what it computed before', (t) => {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-restart-'));
  t.teardown(() => rmSync(directory, { recursive: true }));
  const [, code] = /^\*\*A restart, whole\.\*\*.*?^```js\n(.*?)^```/ms.exec(read('docs/tiers.md'))!;
  const program = code!.replace("'kv-store'", JSON.stringify(directory));
  t.not(program, code);
  for (const found of [0, 1_599]) {
    const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8', cwd: root });
    t.is(stdout, `${found} of 1600 tokens were on the disk\n`, stderr);
  }
});

cacheTest('the function of docs/cache.md for short memory preempts until the batch fits, and not without end', { rows: 4, slots: 4 }, (t, { cache }) => {
  const code = blockOf('docs/cache.md', 'When memory is short').replace(/^import .*$/m, '');
  const prepare = new Function('isKvError', `${code}\nreturn prepareOrPreempt;`)(isKvError) as (...parameters: unknown[]) => void;
  const batch = cache.createBatch();
  const rows = cache.layout.tokensIn(2);
  const running = [0, 1, 2].map(() => ({ sequence: cache.acquire(), tokens: rows }));
  prepare(cache, batch, running);
  t.is(running.length, 2);
  cache.commit(batch);
  running.splice(1)[0]!.sequence.release();
  running[0]!.tokens = cache.layout.tokensIn(6) - rows;
  t.throws(() => { prepare(cache, batch, running); }, { code: 'KV_OUT_OF_PAGES' });
  running[0]!.sequence.release();
});

test('the engine in docs/engines.md is the one of the example that runs', (t) => {
  const engine = /class CopyingEngine.*?\n}\n/s.exec(read('examples/serving.ts'))![0];
  t.true(read('docs/engines.md').includes(engine));
});

for (const [file, heading] of [['README.md', 'Shared prefixes'], ['docs/prefix-caching.md', 'Prefix caching']] as const) {
  cacheTest(`the code of ${file} for a shared prefix runs whatever is cached, a value for the whole prompt too`, { rows: 8 }, (t, { cache }) => {
    const prompt = Int32Array.from({ length: 100 }, (_, at) => at);
    const batch = cache.createBatch();
    const run = new Function('cache', 'batch', 'prompt', 'token', `${blockOf(file, heading)}\nreturn sequence;`) as
      (...parameters: unknown[]) => Sequence;
    for (const expected of [0, 99, 100]) {
      batch.clear();
      const sequence = run(cache, batch, prompt, 7);
      t.is(sequence.cachedTokens, expected);
      if (batch.length > 0 && !batch.isPrepared && sequence.length < 100) {
        cache.prepare(batch);
        cache.commit(batch);
      }
      t.is(sequence.length, 100);
      if (expected === 99) sequence.keepValue('last logits');
      sequence.release();
    }
  });
}
