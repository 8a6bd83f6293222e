// What tiers that outlive a process give to the next: the same text, byte for byte, in another process, under another layout, page size or
// driver; and nothing to another model, dtype, shape, worker or block size. Two processes at once share a Redis.

import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { diskTier, redisTier, type Tier } from 'virtual-kv';

import { patient } from '../../helpers/patient.js';
import { RedisServer } from '../../helpers/redis-server.js';
import { redisTest } from '../../helpers/redis-test.js';
import { refuses } from '../../helpers/refuses.js';
import type { ChildReport, ChildTask } from './lasting-child.js';
import { LastingCache, lastingModel, textTokens, type LastingOptions } from './lasting-cache.js';
import { slow } from '../../runner/slow.js';

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-restart-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

function inChild(task: ChildTask): Promise<ChildReport> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [path.join(__dirname, 'lasting-child.js'), JSON.stringify(task)], { stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    child.stdout.setEncoding('utf8').on('data', (part: string) => { text += part; });
    child.on('close', (code) => {
      if (code === 0) resolve(JSON.parse(text) as ChildReport);
      else reject(new Error(`the process ended with ${code}`));
    });
  });
}

/** Caches that find what another one stored. */
const alike: Readonly<Record<string, LastingOptions>> = {
  'the same': {},
  'a fused layout': { layout: 'fused' },
  'a sliced layout': { layout: 'sliced' },
  'larger pages': { pageBytes: 2 * 65_536 },
  'host memory': { on: 'host' },
  'host memory, fused, larger pages': { on: 'host', layout: 'fused', pageBytes: 4 * 65_536 },
  'more slots and other lengths': { slots: 9, maxTokens: 512 },
};

/** Caches that must not. */
const others: Readonly<Record<string, LastingOptions>> = {
  'another model': { prefixCache: { modelId: 'm2' } },
  'another dtype of the same size': { model: { ...lastingModel, dtype: 'bfloat16' } },
  'another dtype': { model: { ...lastingModel, dtype: 'float8' } },
  'heads of the same bytes': { model: { ...lastingModel, kvHeads: 4, headDim: 64 } },
  'other K and V heads of the same bytes': { model: { ...lastingModel, headDim: 64, valueHeadDim: 192 } },
  'fewer layers': { model: { ...lastingModel, layers: 1 } },
  'a share of the heads of as many': { model: { ...lastingModel, kvHeads: 4, parallel: { tensor: 2, tensorRank: 0 } } },
  'the other share': { model: { ...lastingModel, kvHeads: 4, parallel: { tensor: 2, tensorRank: 1 } } },
  'a later part of the layers': { model: { ...lastingModel, layers: 4, parallel: { pipeline: 2, pipelineRank: 1 } } },
  'blocks of another size': { prefixCache: { tierBlockTokens: 8 } },
};

slow('starts processes')('a disk is found again by another process, and by caches of other layouts, page sizes and drivers', async (t) => {
  const directory = path.join(folder, 'alike');
  const tier = (): Tier => diskTier({ directory, bytes: 64 * 2 ** 20, admit: 'all' });
  const { found } = await inChild({ work: 'compute', directory, texts: [1, 2] });
  t.deepEqual(found.map(({ found: cached }) => cached), [0, 0]);
  for (const [what, options] of Object.entries(alike)) {
    const cache = new LastingCache([tier()], options);
    await cache.ready();
    t.deepEqual(await cache.serve(2), { found: textTokens - 1, wrong: 0, from: { disk: textTokens }, end: 'complete' }, what);
    await cache.close();
  }
  const again = await inChild({ work: 'serve', directory, texts: [2, 1, 3], options: { on: 'host', layout: 'sliced' } });
  t.deepEqual(again.found.map(({ from, wrong }) => [from, wrong]), [[{ disk: textTokens }, 0], [{ disk: textTokens }, 0], [{}, 0]]);
});

slow('starts processes')('a disk gives nothing to another model, dtype, shape, worker or block size', async (t) => {
  const directory = path.join(folder, 'others');
  const tier = (): Tier => diskTier({ directory, bytes: 64 * 2 ** 20, admit: 'all' });
  await inChild({ work: 'compute', directory, texts: [1] });
  for (const [what, options] of Object.entries(others)) {
    const cache = new LastingCache([tier()], options);
    await cache.ready();
    t.deepEqual(await cache.serve(1), { found: 0, wrong: 0, from: {}, end: 'complete' }, what);
    await cache.close();
  }
  const cache = new LastingCache([tier()]);
  await cache.ready();
  t.is((await cache.serve(1)).found, textTokens - 1, 'what is there is left alone');
  await cache.close();
});

redisTest('a Redis gives what one process computed to another, and nothing to another model, dtype, shape, worker or block size', async (t) => {
  const { url } = await RedisServer.start(t);
  const tier = (): Tier => redisTier({ url, ...patient });
  const whole = textTokens - textTokens % 16;
  // Two that store the same at once.
  await Promise.all([1, 2].map(() => inChild({ work: 'compute', url, texts: [1, 2, 3] })));
  const served = await Promise.all([{}, { on: 'host', layout: 'fused' } as const].map((options) => inChild({ work: 'serve', url, texts: [3, 2, 1], options })));
  for (const { found } of served) {
    t.deepEqual(found, found.map(() => ({ found: whole, wrong: 0, from: { redis: whole }, end: 'complete' })));
  }
  for (const [what, options] of Object.entries(others)) {
    const cache = new LastingCache([tier()], options);
    await cache.ready();
    t.deepEqual(await cache.serve(1), { found: 0, wrong: 0, from: {}, end: 'complete' }, what);
    await cache.close();
  }
}, slow('starts processes'));

test('tiers that outlive a tensor-parallel worker must know which one it is; a latent tensor is whole on each', async (t) => {
  const tier = (): Tier => diskTier({ directory: path.join(folder, 'rank'), bytes: 64 * 2 ** 20 });
  refuses(t, () => new LastingCache([tier()], { model: { ...lastingModel, parallel: { tensor: 2 } } }),
    'KV_INVALID_OPTION', { option: 'model.parallel.tensorRank' });
  refuses(t, () => new LastingCache([], { model: { ...lastingModel, parallel: { tensor: 2, tensorRank: 2 } } }),
    'KV_INVALID_OPTION', { owner: 'model', option: 'parallel.tensorRank', received: 2 });
  const latent = new LastingCache([tier()], { model: { layers: 2, attention: 'latent', latentDim: 256, dtype: 'float16', parallel: { tensor: 2 } } });
  await latent.ready();
  await latent.close();
});
