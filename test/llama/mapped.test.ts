// Weights that stay in their files: the same answers as from copies, without memory of the process's own; and files that are cut short,
// written to or replaced while they are mapped, which end a pass and never the process.
// Slow: it loads models again and again, in processes.

import { spawnSync } from 'node:child_process';
import { closeSync, cpSync, existsSync, mkdtempSync, openSync, readFileSync, statfsSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { Random } from '#internal/base/random.js';
import { LlamaModel } from '#internal/llama/model.js';
import { randomLlama, removeFolder, writeLlama } from '../helpers/made-llama.js';
import { refuses } from '../helpers/refuses.js';
import { folderOf } from '../helpers/temporary-folder.js';

const child = path.join(__dirname, 'mapped-child.js');
const MiB = 2 ** 20;
const original = writeLlama(randomLlama(new Random(1), {
  layers: 1, hidden: 256, intermediate: 768, queryHeads: 2, kvHeads: 1, headDim: 128, vocabularyTokens: 36_000,
}, { tie_word_embeddings: true }, 'bfloat16'), 'bfloat16');
const small = writeLlama(randomLlama(new Random(1), {
  layers: 1, hidden: 64, intermediate: 64, queryHeads: 2, kvHeads: 1, headDim: 32, vocabularyTokens: 64,
}, { tie_word_embeddings: true }, 'bfloat16'), 'bfloat16');
test.after.always(() => {
  removeFolder(original);
  removeFolder(small);
});

function isTmpfs(folder: string): boolean {
  return existsSync(folder) && statfsSync(folder).type === 0x0102_1994;
}

interface Result {
  readonly answers: readonly (string | number)[];
  readonly grown: number;
}

interface Run {
  readonly signal: string | null;
  readonly result: Result;
}

/** A folder whose weights were written an hour ago, or just now, in a process of its own. */
function run(scenario: string, placement: 'mapped' | 'copied', isOld = true, change: (file: string) => void = () => {}): Run {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-mapped-'));
  cpSync(original, folder, { recursive: true });
  change(path.join(folder, 'model.safetensors'));
  try {
    const seconds = isOld ? -3_600 : 60; // not now: on a busy machine the process starts late
    utimesSync(path.join(folder, 'model.safetensors'), new Date(), new Date(Date.now() + 1_000 * seconds));
    const { signal, stdout, stderr } = spawnSync(process.execPath, ['--expose-gc', child, scenario, folder, placement], { encoding: 'utf8' });
    if (signal === null && stdout === '') throw new Error(stderr);
    return { signal, result: (signal === null ? JSON.parse(stdout) : { answers: [], grown: 0 }) as Result };
  } finally {
    removeFolder(folder);
  }
}

test('mapped weights answer as copied ones, and take no memory of the process', (t) => {
  const [mapped, copied] = [run('nothing', 'mapped').result, run('nothing', 'copied').result];
  t.is(typeof mapped.answers[0], 'number');
  t.deepEqual(mapped.answers, copied.answers);
  const bytes = 2 * (36_000 * 256 + 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768);
  t.log(`of ${bytes / MiB} MiB of weights: mapped ${mapped.grown / MiB} MiB, copied ${copied.grown / MiB} MiB`);
  t.true(copied.grown - mapped.grown > 0.8 * bytes);
});

test('tensors at odd addresses are copied, and answer the same', (t) => {
  const moved = run('nothing', 'mapped', true, (file) => {
    const before = readFileSync(file);
    const length = Number(before.readBigUInt64LE());
    const after = Buffer.concat([before.subarray(0, 8 + length), Buffer.from(' '), before.subarray(8 + length)]);
    after.writeBigUInt64LE(BigInt(length + 1));
    writeFileSync(file, after);
  });
  t.deepEqual(moved.result.answers, run('nothing', 'mapped').result.answers);
});

test('a file that is cut short while it is mapped ends passes with an error, and not the process', (t) => {
  const { signal, result } = run('cut', 'mapped');
  t.is(signal, null);
  t.is(typeof result.answers[0], 'number');
  t.deepEqual(result.answers.slice(1), ['KV_MODEL_INVALID', 'KV_MODEL_INVALID']);
});

test('a file that is written to while it is mapped answers with an error, and never with other weights', (t) => {
  t.deepEqual(run('write', 'mapped').result.answers.slice(1), ['KV_MODEL_INVALID', 'KV_MODEL_INVALID']);
});

test('a copied file may be cut, a mapped one replaced, and one written just now is copied', (t) => {
  const expected = run('nothing', 'copied').result.answers;
  t.deepEqual(run('cut', 'copied').result.answers, expected);
  t.deepEqual(run('replace', 'mapped').result.answers, expected);
  t.deepEqual(run('cut', 'mapped', false).result.answers, expected);
});

/** A model of the folder that this thread loads, and one that another does. */
type Models = readonly [here: LlamaModel, loaded: LlamaModel];

async function modelsOf(folder: string): Promise<Models> {
  return [new LlamaModel(folder), await LlamaModel.load(folder)];
}

/** The same of weights that were written just now: once more where a busy machine took longer than that lasts. */
async function modelsOfNow(folder: string): Promise<Models> {
  for (;;) {
    const beginMs = Date.now();
    setAge(folder, 0);
    const models = await modelsOf(folder);
    if (Date.now() - beginMs < 2_000) return models;
  }
}

/** What `LlamaModel.copiedFiles` says of them. */
function reasonsOf(t: ExecutionContext, folder: string, [here, loaded]: Models): readonly string[] {
  t.deepEqual(loaded.copiedFiles, here.copiedFiles);
  t.is(typeof here.weights.embedding.data, here.copiedFiles.length === 0 ? 'bigint' : 'object');
  return here.copiedFiles.map(({ path: file, reason }) => {
    t.is(file, path.join(folder, 'model.safetensors'));
    return reason;
  });
}

function setAge(folder: string, seconds: number): void {
  utimesSync(path.join(folder, 'model.safetensors'), new Date(), new Date(Date.now() - 1_000 * seconds));
}

test('a model tells which files are copied that were to be mapped, and why', async (t) => {
  const folder = path.join(folderOf(t), 'model');
  cpSync(small, folder, { recursive: true });
  const reasons = async (): Promise<readonly string[]> => reasonsOf(t, folder, await modelsOf(folder));
  t.deepEqual(reasonsOf(t, folder, await modelsOfNow(folder)), ['written-just-now']);
  setAge(folder, -3_600);
  t.deepEqual(await reasons(), ['time-ahead']);
  setAge(folder, 4);
  t.deepEqual(await reasons(), []);
  const writer = openSync(path.join(folder, 'model.safetensors'), 'r+'); // which may have mapped it
  t.deepEqual(await reasons(), ['open-for-writing']);
  closeSync(writer);
  t.deepEqual(await reasons(), []);
  t.deepEqual(new LlamaModel(folder, { weights: 'copied' }).copiedFiles, []);
});

(isTmpfs('/dev/shm') ? test : test.skip)('a model on a file system in memory is copied (needs tmpfs at /dev/shm)', async (t) => {
  const folder = mkdtempSync('/dev/shm/vkv-mapped-');
  t.teardown(() => { removeFolder(folder); });
  cpSync(small, folder, { recursive: true });
  setAge(folder, 3_600);
  t.deepEqual(reasonsOf(t, folder, await modelsOf(folder)), ['in-memory']);
});

test('a SIGBUS that is no page of weights still ends the process', (t) => {
  t.is(run('signal', 'mapped').signal, 'SIGBUS');
});

test('another placement of weights is refused by name', (t) => {
  refuses(t, () => new LlamaModel('nowhere', { weights: 'shared' as 'mapped' }),
    'KV_INVALID_OPTION', { option: 'weights', received: 'shared' });
});
