// Tiers under engines that run ahead, on streams that only the test completes and by steps: text is read when its work is over and not before,
// and nothing that comes back, is copied or unmapped meets queued work. The simulated device notes every misuse.

import test from 'ava';

import { hostTier, isKvError } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { CacheBench } from '../../helpers/cache.js';
import { RunAheadEngine } from '../../helpers/run-ahead-engine.js';
import { seedOf } from '../../helpers/seed.js';
import { dropFromDevice, turn } from './device-index.js';

const scale = Math.min(20, Number(process.env['VKV_TEST_SCALE'] ?? 1));
const expected = ['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT', 'KV_WORK_QUEUED', 'KV_LENGTH_OUT_OF_RANGE', 'KV_PREFIX_IN_USE'];
const mostAhead = 4;

for (const [title, steps, lanes] of [['one stream', false, 1], ['three streams', false, 3], ['steps', true, 1]] as const) {
  const seed = seedOf(`run-ahead tiers ${title}`);
  test(`an engine that runs ahead on ${title} loses no byte to tiers (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const counts: Record<string, number> = {};
    const count = (what: string, by = 1): void => { counts[what] = (counts[what] ?? 0) + by; };
    for (let round = 0; round < Math.max(1, 6 * scale); round += 1) {
      const bench = new CacheBench(t, {
        pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' }, slots: 6, maxTokens: 64, rows: 14 + random.integer(20),
        mapper: random.chance(0.5) ? 'off' : 'background', device: { streams: 'manual', granularityBytes: 4096 },
        prefixCache: { tiers: [hostTier({ bytes: [64 * 1024, 2 ** 24][random.integer(2)]! })], tierBlockTokens: 8 },
      });
      const { cache } = bench;
      const { prefixes } = cache;
      const tiers = prefixes.tiers!;
      const engine = new RunAheadEngine(bench, { steps, streams: lanes, random });
      let completed = 0;
      const promotions: Promise<void>[] = [];
      const prompt = (): number[] => Array.from({ length: 1 + random.integer(40) }, (_, index) => (index < 5 ? 0 : random.integer(2)));
      const pick = () => engine.running[random.integer(Math.max(1, engine.running.length))];
      const operations: Readonly<Record<string, () => void>> = {
        start: () => void engine.start(prompt(), { reserve: random.chance(0.5) ? 'prompt' : 'none' }, random.integer(lanes)),
        step: () => {
          const lane = random.integer(lanes);
          const sequences = engine.running.filter((running) => running.lane === lane && random.chance(0.7));
          if (sequences.length > 0) engine.step(sequences.slice(0, 3), 1 + random.integer(3), random.chance(0.93));
        },
        fork: () => {
          const running = pick();
          if (running !== undefined) engine.fork(running);
        },
        release: () => {
          const running = pick();
          if (running !== undefined) engine.release(running, { fence: steps ? { step: engine.queuedStep } : { stream: engine.streams[running.lane]! } });
        },
        promote: () => {
          promotions.push(prefixes.promote({ tokens: prompt() }).then(({ promotedTokens, end }) => {
            count(end);
            count('promoted tokens', promotedTokens);
          }));
        },
        drop: () => dropFromDevice(cache),
        reset: () => {
          prefixes.reset({ preempt: true });
          engine.forgetReleased();
        },
        complete: () => {
          if (!steps) bench.mock.completeStream(engine.streams[random.integer(lanes)]!);
          completed = engine.queuedStep;
        },
        turn: () => {},
      };
      const weights: readonly (readonly [string, number])[] = [
        ['start', 14], ['step', 40], ['fork', 6], ['release', 14], ['promote', 12], ['drop', 3], ['reset', 0.5], ['complete', 12], ['turn', 10],
      ];
      const total = weights.reduce((sum, [, weight]) => sum + weight, 0);
      for (let at = 0; at < 200; at += 1) {
        if (engine.queuedStep - completed > mostAhead) {
          completed = engine.queuedStep - random.integer(mostAhead);
          if (!steps) for (const stream of engine.streams) if (random.chance(0.6)) bench.mock.completeStream(stream);
        }
        if (steps) engine.completeStep(completed);
        let roll = random.next() * total;
        const [name] = weights.find(([, weight]) => (roll -= weight) < 0)!;
        count(name);
        try {
          operations[name]!();
        } catch (error) {
          if (!isKvError(error) || !expected.includes(error.code)) throw error;
          count(error.code);
        }
        if (random.chance(0.5)) await turn();
      }
      engine.finish();
      if (steps) engine.completeStep(engine.queuedStep);
      await Promise.all(promotions);
      await tiers.settled();
      engine.assertAll();
      // All over again, from what tiers have.
      for (const running of engine.running) engine.release(running);
      engine.finish();
      await tiers.settled();
      dropFromDevice(cache);
      for (let at = 0; at < 10; at += 1) {
        const tokens = prompt();
        count('promoted tokens', (await prefixes.promote({ tokens })).promotedTokens);
        try {
          engine.start(tokens);
        } catch (error) {
          if (!isKvError(error) || !expected.includes(error.code)) throw error;
        }
        engine.assertAll();
      }
      for (const running of engine.running) engine.release(running);
      engine.close();
      t.is(cache.metrics.lateErrors, 0);
      for (const { damagedBlocks, misses } of tiers.metrics().tiers) t.deepEqual([damagedBlocks, misses.corrupt], [0, 0]);
      await tiers.close();
      bench.close();
    }
    t.log(JSON.stringify(counts));
    t.true(counts['promoted tokens']! > 0);
  });
}
