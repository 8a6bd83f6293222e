// Exact results: the logits behind a text have one value, to the bit, whatever was cached of it, however it was cut, and whatever else
// was in its passes. Random texts that begin alike grow in random company; each answer is compared with the text computed at once, alone.

import test from 'ava';

import { KvCache, layoutKinds, type RowDtype } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { Random } from '#internal/base/random.js';
import { Scene } from '../helpers/llama-scene.js';
import { pageBytes, randomText, shapeOf } from '../helpers/llama-shapes.js';
import { layerKinds } from '../helpers/layer-kinds.js';
import { randomLlama, removeFolder, writeLlama, type Json } from '../helpers/made-llama.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { scale } from '../runner/tier.js';

const seed = seedOf('exact results');
const dtypes: readonly RowDtype[] = ['float32', 'float16', 'bfloat16'];

test(`an exact answer has one value, whatever was cached, in any company and cut in any way (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
  let hits = 0;
  for (let round = 0; round < 6 * scale; round += 1) {
    const layout = pick(layoutKinds);
    const [weights, kept] = [pick(dtypes), pick(dtypes)];
    const more = pick([{}, ...Object.values(layerKinds).map((kind): Json => kind.more)]);
    const folder = writeLlama(randomLlama(random, shapeOf(layout, 2, pick([1, 2]), pick([1, 2, 3])), more, weights), weights);
    const model = new LlamaModel(folder, { threads: pick([1, 2]) });
    const scene = new Scene(model, kept, layout, pick(['awaited', 'blocking'] as const));
    const alone = new LlamaModel(folder, { threads: 1 });
    const shared = randomText(random, 90);
    const expected = async (text: readonly number[]): Promise<Float32Array> => {
      const plain = new Scene(alone, kept, layout, 'blocking');
      const sequence = plain.cache.acquire();
      const [logits] = await plain.step([{ text, sequence, tokens: text.length }]);
      sequence.release();
      plain.close();
      return logits!;
    };
    const open: { text: number[]; sequence: ReturnType<KvCache['acquire']> }[] = [];
    for (let step = 0; step < 40; step += 1) {
      if (open.length < 5 && random.integer(2) === 0) {
        const text = [...shared.slice(0, random.integer(90)), ...randomText(random, 1 + random.integer(50))];
        const sequence = scene.cache.acquire({ tokens: text });
        hits += sequence.length > 0 ? 1 : 0;
        open.push({ text, sequence });
      }
      const isDecoding = random.integer(2) === 0;
      const chunks = open.filter(() => random.integer(3) > 0).map((member) => {
        const left = member.text.length - member.sequence.length;
        return { ...member, tokens: isDecoding ? 1 : 1 + random.integer(left) };
      });
      if (chunks.length === 0) continue;
      const answers = await scene.step(chunks);
      for (const [index, { text, sequence }] of chunks.entries()) {
        const about = `round ${round}, ${JSON.stringify(more)}, step ${step}: ${weights}, K and V ${kept}, ${layout}, ${chunks.length} sequences, ${sequence.length} tokens`;
        if (random.integer(3) === 0) t.deepEqual(answers[index], await expected(text.slice(0, sequence.length)), about);
        if (sequence.length < text.length) continue;
        sequence.release();
        open.splice(open.findIndex((member) => member.sequence === sequence), 1);
      }
    }
    for (const { sequence } of open) sequence.release();
    scene.close();
    removeFolder(folder);
  }
  t.true(hits > 0, 'some texts were cached');
});

test('exact results are refused on a device, by name, and an unknown kind of results everywhere', (t) => {
  const folder = writeLlama(randomLlama(new Random(seed), shapeOf('per-layer', 1, 1, 1)));
  t.teardown(() => removeFolder(folder));
  const model = new LlamaModel(folder);
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 28 });
  for (const [driver, results] of [[device.driver, 'exact'], ['host', 'exakt']] as const) {
    using cache = new KvCache({ model: model.shape(), slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver, pageBytes, mapper: 'off' });
    refuses(t, () => new LlamaEngine({ model, cache, results: results as 'exact' }),
      'KV_INVALID_OPTION', { option: 'results', received: results });
  }
  device.close();
});
