// Loading a model on a worker thread: what the constructor loads, to the bit, and the errors that it throws; a load that is given up, a
// file that changes meanwhile, and a thread or a process that ends in the middle.

import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, renameSync, rmSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import { getEventListeners, once } from 'node:events';
import * as path from 'node:path';
import { Worker } from 'node:worker_threads';

import test, { type ExecutionContext } from 'ava';

import type { Weight } from 'virtual-kv';
import { LlamaModel } from 'virtual-kv/llama';

import { Random } from '#internal/base/random.js';
import { parseLlamaConfig } from '#internal/llama/config.js';
import { loadOnThread } from '#internal/llama/load-model.js';
import { Scene } from '../helpers/llama-scene.js';
import { randomText, vocabularyTokens } from '../helpers/llama-shapes.js';
import { writeGguf } from '../helpers/made-gguf.js';
import { randomLlama, removeFolder, writeLlama, type LlamaSizes } from '../helpers/made-llama.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('loading');
const root = path.resolve(__dirname, '..', '..');
const sizes: LlamaSizes = { layers: 2, hidden: 64, intermediate: 96, queryHeads: 4, kvHeads: 2, headDim: 32, vocabularyTokens };
const made = randomLlama(new Random(seed), sizes, { tie_word_embeddings: true, attention_bias: true }, 'bfloat16');
const original = writeLlama(made, 'bfloat16');
test.after.always(() => removeFolder(original));

/** A folder of the model, with files an hour old, which are mapped. */
function modelFor(t: ExecutionContext): string {
  const folder = path.join(folderOf(t), 'model');
  cpSync(original, folder, { recursive: true });
  makeOld(path.join(folder, 'model.safetensors'));
  return folder;
}

function makeOld(file: string): void {
  utimesSync(file, new Date(), new Date(Date.now() - 3_600_000));
}

async function logitsOf(model: LlamaModel, text: readonly number[]): Promise<Float32Array> {
  const scene = new Scene(model, 'float32', 'per-layer', 'awaited');
  const sequence = scene.cache.acquire();
  const [logits] = await scene.step([{ text, sequence, tokens: text.length }]);
  sequence.release();
  scene.close();
  return logits!;
}

for (const weights of ['mapped', 'copied', 'int8'] as const) {
  for (const kind of ['folder', 'GGUF file'] as const) {
    slow('loads models on threads and in processes')(`a ${kind} is loaded on a thread as the constructor loads it, ${weights}, to the bit (seed ${seed})`, async (t) => {
      let place = modelFor(t);
      if (kind === 'GGUF file') {
        place = path.join(place, 'model.gguf');
        writeGguf(place, made, parseLlamaConfig(made.config, 'made'), 'llama', 'F16');
        makeOld(place);
      }
      const [loaded, constructed] = [await LlamaModel.load(place, { weights, threads: 2 }), new LlamaModel(place, { weights, threads: 2 })];
      t.true(loaded instanceof LlamaModel);
      t.deepEqual(loaded.config, constructed.config);
      t.is(loaded.weights.bytesPerToken, constructed.weights.bytesPerToken);
      t.deepEqual(loaded.shape(), constructed.shape());
      const [ours, theirs] = [loaded, constructed].map(({ weights: { embedding, layers } }) => [embedding, ...layers.map(({ query }) => query.weight), ...layers.map(({ down }) => down.weight)]);
      const isMapped = ({ data }: Weight): boolean => typeof data === 'bigint';
      t.deepEqual(ours!.map(isMapped), theirs!.map(isMapped));
      t.is(isMapped(ours![0]!), weights === 'mapped');
      if (weights !== 'mapped') t.deepEqual(ours, theirs);
      t.is(loaded.weights.head.data, loaded.weights.embedding.data);
      const text = randomText(new Random(seed), 40);
      t.deepEqual(await logitsOf(loaded, text), await logitsOf(constructed, text));
    });
  }
}

slow('loads models on threads and in processes')('a folder that cannot be loaded is refused as the constructor refuses it', async (t) => {
  const cases: readonly ((folder: string) => void)[] = [
    (folder) => { rmSync(folder, { recursive: true }); },
    (folder) => { rmSync(path.join(folder, 'model.safetensors')); },
    (folder) => { rmSync(path.join(folder, 'model.safetensors')); mkdirSync(path.join(folder, 'model.safetensors')); },
    (folder) => { truncateSync(path.join(folder, 'model.safetensors'), 4_096); },
    (folder) => { writeFileSync(path.join(folder, 'config.json'), '{'); },
    (folder) => { writeFileSync(path.join(folder, 'config.json'), JSON.stringify({ ...made.config, num_hidden_layers: 3 })); },
  ];
  for (const damage of cases) {
    const folder = modelFor(t);
    damage(folder);
    const expected = t.throws(() => new LlamaModel(folder), { code: 'KV_MODEL_INVALID' });
    await t.throwsAsync(LlamaModel.load(folder), { code: 'KV_MODEL_INVALID', message: expected.message });
  }
});

test('a load that is given up ends with KV_ABORTED, and the next one is as any', async (t) => {
  const folder = modelFor(t);
  const given = new AbortController();
  const load = LlamaModel.load(folder, { weights: 'int8', signal: given.signal });
  t.is(getEventListeners(given.signal, 'abort').length, 1);
  given.abort('enough');
  t.is((await t.throwsAsync(load, { code: 'KV_ABORTED' })).cause, 'enough');
  await t.throwsAsync(LlamaModel.load(folder, { signal: given.signal }), { code: 'KV_ABORTED' });
  const unused = new AbortController();
  t.is((await LlamaModel.load(folder, { signal: unused.signal })).config.layers, 2);
  for (const { signal } of [given, unused]) t.is(getEventListeners(signal, 'abort').length, 0);
});

/** A worker that does something first, to its answer's port or to what it loads with. */
function workerThat(t: ExecutionContext, script: string): string {
  const file = path.join(folderOf(t), 'worker.cjs');
  writeFileSync(file, `const fs = require('node:fs');
    const { parentPort, workerData: { model } } = require('node:worker_threads');
    const weights = require('node:path').join(model, 'model.safetensors');
    const load = () => require(${JSON.stringify(path.join(root, 'dist', 'llama', 'loading-worker.js'))});
    const beforeAnswer = (change) => { const post = parentPort.postMessage.bind(parentPort); parentPort.postMessage = (answer) => { change(); post(answer); }; };
    const { readSync } = fs; // a header is read in two parts
    const behindHeader = (change) => { let reads = 0; fs.readSync = (...given) => { const read = readSync(...given); if ((reads += 1) === 2) change(); return read; }; };
    ${script}`);
  return file;
}

for (const [name, change] of Object.entries({
  'is cut while it is read': 'behindHeader(() => fs.truncateSync(weights, 4096)); load();',
  'is written to while it is read': "behindHeader(() => fs.appendFileSync(weights, 'x')); load();",
  'is cut once it was read': 'beforeAnswer(() => fs.truncateSync(weights, 4096)); load();',
  'is written to once it was read': "beforeAnswer(() => fs.writeSync(fs.openSync(weights, 'r+'), 'x', 4096)); load();",
})) {
  test(`a mapped file that ${name} is KV_MODEL_INVALID`, async (t) => {
    const model = modelFor(t);
    await t.throwsAsync(loadOnThread({ model, kind: 'mapped', options: {} }, undefined, workerThat(t, change)), { code: 'KV_MODEL_INVALID', message: /cut short/ });
  });
}

test('a file in whose place another is put meanwhile is the one that was read', async (t) => {
  const model = modelFor(t);
  const text = randomText(new Random(seed), 20);
  const expected = await logitsOf(new LlamaModel(model), text);
  const other = path.join(model, 'other');
  writeFileSync(other, 'no weights');
  const loaded = await loadOnThread({ model, kind: 'mapped', options: {} }, undefined, workerThat(t, `beforeAnswer(() => fs.renameSync(${JSON.stringify(other)}, weights)); load();`));
  t.is(loaded.weights.files.length, 1);
  t.deepEqual(await logitsOf(new (LlamaModel as unknown as new (...given: unknown[]) => LlamaModel)(loaded, {}), text), expected);
  t.throws(() => { renameSync(other, other); }, { code: 'ENOENT' });
});

test('where the thread dies, the load fails with what it said', async (t) => {
  const request = { model: original, kind: 'mapped', options: {} } as const;
  const dying = (script: string): Promise<unknown> => loadOnThread(request, undefined, workerThat(t, script));
  await t.throwsAsync(dying('process.exit(3);'), { code: 'KV_INTERNAL', message: /loads .*\(3\)/ });
  t.like((await t.throwsAsync(dying("throw new Error('out of something');"), { code: 'KV_INTERNAL' })).cause, { message: 'out of something' });
  await t.throwsAsync(dying("parentPort.postMessage({ error: new RangeError('Array buffer allocation failed') });"), { instanceOf: RangeError, message: /allocation failed/ });
});

slow('loads models on threads and in processes')('a thread that loads a model may be ended in the middle', async (t) => {
  for (let round = 0; round < 3; round += 1) {
    const worker = new Worker(`const { LlamaModel } = require('virtual-kv/llama'); void LlamaModel.load(${JSON.stringify(original)}, { weights: 'int8' });
      require('node:worker_threads').parentPort.postMessage('loads'); setInterval(() => {}, 1_000);`, { eval: true });
    await once(worker, 'message');
    for (let turn = 0; turn < 40 * round; turn += 1) await new Promise(setImmediate);
    t.is(await worker.terminate(), 1);
  }
  t.is((await LlamaModel.load(original)).config.layers, 2);
});

const endings: Readonly<Record<string, { readonly script: string; readonly status: number; readonly stdout: string }>> = {
  'that waits for a model gets it before it ends': { script: "LlamaModel.load(model).then(({ config }) => console.log(config.layers))", status: 0, stdout: '2\n' },
  'that has given up ends': { script: "const c = new AbortController(); const load = LlamaModel.load(model, { signal: c.signal }); c.abort(); await load.catch((e) => console.log(e.code))", status: 0, stdout: 'KV_ABORTED\n' },
  'that exits meanwhile exits': { script: 'LlamaModel.load(model); setImmediate(() => process.exit(7))', status: 7, stdout: '' },
};
for (const [name, { script, status, stdout }] of Object.entries(endings)) {
  slow('loads models on threads and in processes')(`a process ${name}`, (t) => {
    const program = `import { LlamaModel } from 'virtual-kv/llama'; const model = ${JSON.stringify(original)}; ${script}`;
    const ended = spawnSync(process.execPath, ['--input-type=module', '--eval', program], { encoding: 'utf8', timeout: 500_000, cwd: root });
    t.deepEqual({ status: ended.status, stdout: ended.stdout, stderr: ended.stderr }, { status, stdout, stderr: '' });
  });
}
