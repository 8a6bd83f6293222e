// What tiers are told of a model's weights: the same for the same file, however it is loaded, and another for one that has changed.

import { readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { KvCache, diskTier } from 'virtual-kv';
import { LlamaModel } from 'virtual-kv/llama';

import { Random } from '#internal/base/random.js';
import { vocabularyTokens } from '../helpers/llama-shapes.js';
import { randomLlama, removeFolder, writeLlama } from '../helpers/made-llama.js';
import { folderOf } from '../helpers/temporary-folder.js';

const made = randomLlama(new Random(1), { layers: 2, hidden: 64, intermediate: 96, queryHeads: 4, kvHeads: 2, headDim: 32, vocabularyTokens });

test('weights that differ in a tensor, or are int8, are another model to tiers; no other way of loading them is', (t) => {
  const folder = writeLlama(made);
  t.teardown(() => { removeFolder(folder); });
  const identityOf = (weights?: 'mapped' | 'copied' | 'int8'): string => new LlamaModel(folder, { weights, threads: 1 }).shape().identity!;
  const before = identityOf('copied');
  t.regex(before, /^[0-9a-f]{64}$/);
  t.deepEqual([identityOf('mapped'), identityOf()], [before, before]);
  t.not(identityOf('int8'), before);
  const file = path.join(folder, 'model.safetensors');
  const bytes = readFileSync(file);
  bytes[bytes.length - 1]! ^= 1;
  writeFileSync(file, bytes);
  t.not(identityOf('copied'), before);
});

test('a tier that outlives the process does with the identity of the weights, and finds nothing of other ones', async (t) => {
  const directory = folderOf(t);
  const model = { layers: 2, kvHeads: 2, headDim: 64, dtype: 'float32' } as const;
  const tokens = Int32Array.from({ length: 64 }, (_, at) => at);
  const found = async (identity: string, modelId?: string): Promise<number> => {
    const cache = new KvCache({
      model: { ...model, identity }, driver: 'host', slots: 2, maxTokens: 256, memoryBudgetBytes: 2 ** 24,
      prefixCache: { modelId, tierBlockTokens: 16, tiers: [diskTier({ directory, bytes: 2 ** 26, admit: 'all' })] },
    });
    await cache.prefixes.tiers!.ready();
    const { demotedTokens } = cache.prefixes.lookup({ tokens });
    const sequence = cache.acquire({ tokens });
    const batch = cache.createBatch();
    batch.add(sequence, 64);
    cache.prepare(batch);
    cache.commit(batch);
    sequence.release();
    await cache.prefixes.tiers!.close();
    cache.close();
    return demotedTokens;
  };
  t.deepEqual([await found('a'), await found('b'), await found('a')], [0, 0, 63]);
  t.deepEqual([await found('a', 'mine'), await found('b', 'mine')], [0, 63], 'a `modelId` is its user\'s word');
});
