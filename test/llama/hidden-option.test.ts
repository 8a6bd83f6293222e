// The side tensor that an engine answers with is looked at when the engine is made, not when the first request fails.

import * as path from 'node:path';

import test from 'ava';

import { KvCache, type SideTensorShape } from 'virtual-kv';
import { LlamaEngine, LlamaModel } from 'virtual-kv/llama';

const model = new LlamaModel(path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller'), { threads: 1 });
const width = model.config.hidden;

function openOver(sideTensors: Record<string, SideTensorShape>, hidden: string): void {
  using cache = new KvCache({
    driver: 'host', model: model.shape(), slots: 1, maxTokens: 64, layout: 'fused', pageBytes: 65_536, memoryBudgetBytes: 2 ** 24, sideTensors,
  });
  new LlamaEngine({ model, cache, hidden }).close();
}

const wrong: readonly (readonly [what: string, sideTensors: Record<string, SideTensorShape>, hidden: string, message: RegExp])[] = [
  ['another width', { hidden: { width: width + 1, dtype: 'float32' } }, 'hidden', /got .*'hidden' of \d+ float32/],
  ['another type', { hidden: { width, dtype: 'bfloat16' } }, 'hidden', /got .*bfloat16/],
  ['a name that is not there', { hidden: { width, dtype: 'float32' } }, 'hiden', /got 'hiden'/],
  ['no side tensors', {}, 'hidden', /left out/],
];
for (const [what, sideTensors, hidden, message] of wrong) {
  test(`\`hidden\` with ${what} is refused, and the cache closes`, (t) => {
    t.throws(() => { openOver(sideTensors, hidden); }, { code: 'KV_INVALID_OPTION', message });
  });
}

test('`hidden` that the cache has as it is computed is taken', (t) => {
  t.notThrows(() => { openOver({ hidden: { width, dtype: 'float32' } }, 'hidden'); });
});
