// Tiers under engines that run ahead, on streams that only the test completes and by steps: text is read when its work is over and not before,
// and nothing that comes back, is copied or unmapped meets queued work. Tiers are host memory alone, with a disk, and with a real redis-server;
// the driver, the disk and the store fail now and then. The simulated device notes every misuse.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { diskTier, hostTier, isKvError, redisTier, type KvCache } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { CacheBench } from '../../helpers/cache.js';
import { deadlineMs, patient } from '../../helpers/patient.js';
import { RedisServer } from '../../helpers/redis-server.js';
import { redisTest } from '../../helpers/redis-test.js';
import { RunAheadEngine } from '../../helpers/run-ahead-engine.js';
import { assertNothingHeld } from '../../helpers/nothing-held.js';
import { seedOf } from '../../helpers/seed.js';
import { dropFromDevice, turn } from './device-index.js';
import { InjectedFailures } from './injected-failures.js';
import { scale as wanted } from '../../runner/tier.js';

const scale = Math.min(20, wanted);
const rounds = Math.max(1, Math.round(6 * scale));
const expected = ['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT', 'KV_WORK_QUEUED', 'KV_LENGTH_OUT_OF_RANGE', 'KV_PREFIX_IN_USE'];
const mostAhead = 4;
const MiB = 2 ** 20;

const weights: readonly (readonly [string, number])[] = [
  ['start', 14], ['step', 40], ['fork', 6], ['release', 14], ['promote', 12], ['drop', 3], ['reset', 0.5], ['fail', 10], ['complete', 12], ['turn', 10],
];
const totalWeight = weights.reduce((sum, [, weight]) => sum + weight, 0);

interface World {
  /** The engine's work is done by steps; else on streams. */
  readonly steps?: boolean;
  readonly lanes?: number;
  readonly hasDisk?: boolean;
  readonly canFail?: boolean;
}

const worlds: Readonly<Record<string, World>> = {
  'one stream': {},
  'three streams': { lanes: 3 },
  'steps': { steps: true },
  'steps, a disk too': { steps: true, hasDisk: true },
  'three streams, a disk too': { lanes: 3, hasDisk: true },
  'three streams, a disk too, while driver and disk fail': { lanes: 3, hasDisk: true, canFail: true },
};
const redisWorlds: Readonly<Record<string, World>> = {
  'three streams, a disk and Redis too': { lanes: 3, hasDisk: true },
  'two streams, a disk and Redis too, while all of them fail': { lanes: 2, hasDisk: true, canFail: true },
};

/** A block that no prompt begins with: what a round leaves to the disk and Redis, the next one finds there. */
const lastText = new Array<number>(8).fill(2);

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-run-ahead-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

/** What stays from round to round of a test: what the disk and Redis keep is found again. */
interface Below {
  readonly name: string;
  readonly seed: number;
  readonly server: RedisServer | undefined;
  readonly random: Random;
  readonly count: (what: string, by?: number) => void;
}

async function runRound(t: ExecutionContext, { steps = false, lanes = 1, hasDisk = false, canFail = false }: World, { name, seed, server, random, count }: Below): Promise<void> {
  const directory = path.join(folder, name);
  const below = [
    ...hasDisk ? [diskTier({ directory, bytes: 16 * MiB, admit: 'all', durability: 'none', direct: false, chunkBytes: 4096 })] : [],
    ...server === undefined ? [] : [redisTier({ url: server.url, ...patient, breaker: { failures: 3, coolDownMs: 5, maxCoolDownMs: 20 } })],
  ];
  const bench = new CacheBench(t, {
    pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' }, slots: 6, maxTokens: 64, rows: 14 + random.integer(20),
    mapper: random.chance(0.5) ? 'off' : 'background', device: { streams: 'manual', granularityBytes: 4096 },
    prefixCache: { tiers: [hostTier({ bytes: [64 * 1024, 16 * MiB][random.integer(2)]! }), ...below], tierBlockTokens: 8, modelId: `run-ahead ${seed}` },
  });
  const { cache } = bench;
  const { prefixes } = cache;
  const tiers = prefixes.tiers!;
  await tiers.ready();
  const failures = canFail ? new InjectedFailures(bench, directory, server) : undefined;
  let isFailing = false;
  const mend = async (): Promise<void> => {
    if (isFailing) await failures!.end();
    isFailing = false;
  };
  const refused = (error: unknown): void => {
    if (!isKvError(error) || error.code === 'KV_INTERNAL' || !(canFail || expected.includes(error.code))) throw error;
    count(error.code);
  };
  const engine = new RunAheadEngine(bench, { steps, streams: lanes, random });
  let completed = 0;
  const promotions: Promise<void>[] = [];
  const prompt = (): number[] => Array.from({ length: 1 + random.integer(40) }, (_, index) => (index < 5 ? 0 : random.integer(2)));
  const pick = () => engine.running[random.integer(Math.max(1, engine.running.length))];
  const promote = async (): Promise<void> => {
    const { promotedTokens, promotedFrom, end } = await prefixes.promote({ tokens: prompt(), deadlineMs });
    t.is(Object.values(promotedFrom).reduce((sum, tokens) => sum + tokens, 0), promotedTokens);
    count(end);
    for (const [tier, tokens] of Object.entries(promotedFrom)) count(`tokens from ${tier}`, tokens);
  };
  const operations: Readonly<Record<string, () => void | Promise<void>>> = {
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
    promote: () => { promotions.push(promote().catch(refused)); },
    drop: () => dropFromDevice(cache),
    reset: () => {
      try {
        prefixes.reset({ preempt: true });
      } finally {
        engine.forgetReleased();
      }
    },
    fail: async () => {
      if (failures === undefined) return;
      if (isFailing && random.chance(0.2)) return mend();
      isFailing = true;
      await failures.begin(random);
    },
    complete: () => {
      if (!steps) bench.mock.completeStream(engine.streams[random.integer(lanes)]!);
      completed = engine.queuedStep;
    },
    turn: () => {},
  };
  for (const [tier, from] of Object.entries((await prefixes.promote({ tokens: lastText, deadlineMs })).promotedFrom)) count(`tokens from ${tier}`, from);
  for (let at = 0; at < 200; at += 1) {
    if (engine.queuedStep - completed > mostAhead) {
      completed = engine.queuedStep - random.integer(mostAhead);
      if (!steps) for (const stream of engine.streams) if (random.chance(0.6)) bench.mock.completeStream(stream);
    }
    if (steps) engine.completeStep(completed);
    let roll = random.next() * totalWeight;
    const [operation] = weights.find(([, weight]) => (roll -= weight) < 0)!;
    count(operation);
    try {
      await operations[operation]!();
    } catch (error) {
      refused(error);
    }
    if (random.chance(0.5)) await turn();
  }
  await mend();
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
  for (let at = 0; at < 10; at += 1) await startOver(cache, engine, prompt(), count, refused);
  for (const running of engine.running) engine.release(running);
  await bringBack(bench, engine, count);
  engine.close();
  const { tiers: metrics } = tiers.metrics();
  const noticed = metrics.reduce((sum, { misses, refusals }) => sum + misses.failed + misses.corrupt + refusals.failed, cache.metrics.lateErrors);
  if (canFail) count('failures noticed', noticed);
  else t.deepEqual([noticed, metrics.map(({ damagedBlocks }) => damagedBlocks)], [0, metrics.map(() => 0)]);
  assertNothingHeld(t, cache);
  await tiers.close();
  bench.close();
}

/** A sequence of a prompt that tiers may have; every byte of it is right. */
async function startOver(cache: KvCache, engine: RunAheadEngine, tokens: number[], count: Below['count'], refused: (error: unknown) => void): Promise<void> {
  const { promotedTokens, promotedFrom } = await cache.prefixes.promote({ tokens, deadlineMs });
  count('tokens promoted at the end', promotedTokens);
  for (const [tier, from] of Object.entries(promotedFrom)) count(`tokens from ${tier}`, from);
  try {
    engine.start(tokens);
  } catch (error) {
    refused(error);
  }
  engine.assertAll();
}

/** What a round may not have done is done at its end, when nothing fails: a text goes down, and comes back. */
async function bringBack({ t, cache, cache: { prefixes } }: CacheBench, engine: RunAheadEngine, count: Below['count']): Promise<void> {
  engine.finish();
  const running = engine.start(lastText);
  engine.step([running]);
  engine.release(running);
  engine.finish();
  await prefixes.tiers!.settled();
  dropFromDevice(cache);
  const { promotedTokens, promotedFrom } = await prefixes.promote({ tokens: lastText, deadlineMs });
  t.is(promotedTokens, lastText.length, 'a text was stored, and did not come back');
  for (const [tier, from] of Object.entries(promotedFrom)) count(`tokens from ${tier}`, from);
}

async function run(t: ExecutionContext, name: string, world: World, seed: number, server?: RedisServer): Promise<void> {
  const counts: Record<string, number> = {};
  const below = { name, seed, server, random: new Random(seed), count: (what: string, by = 1): void => { counts[what] = (counts[what] ?? 0) + by; } };
  // Of a disk and a Redis with the same text the faster one gives it, and where a busy machine makes both too slow, neither does.
  const fromSlower = (): number => ['disk', 'redis'].reduce((sum, tier) => sum + (counts[`tokens from ${tier}`] ?? 0), 0);
  const hasComeFromBelow = (): boolean => world.hasDisk !== true || fromSlower() > 0;
  const hasFailed = (): boolean => world.canFail !== true || counts['failures noticed']! > 0;
  const isDone = (): boolean => scale < 1 || (hasComeFromBelow() && hasFailed());
  for (let round = 0; round < rounds || (round < 5 * rounds && !isDone()); round += 1) await runRound(t, world, below);
  t.log(JSON.stringify(counts));
  if (scale < 1) return;
  t.true(counts['tokens from host']! > 0, 'nothing came from host memory');
  t.true(hasComeFromBelow(), 'nothing came from below');
  t.true(hasFailed(), 'no failure was noticed');
}

for (const [name, world] of Object.entries(worlds)) {
  const seed = seedOf(`run-ahead tiers ${name}`);
  test(`an engine that runs ahead loses no byte to tiers: ${name} (seed ${seed})`, (t) => run(t, name, world, seed));
}
for (const [name, world] of Object.entries(redisWorlds)) {
  const seed = seedOf(`run-ahead tiers ${name}`);
  redisTest(`an engine that runs ahead loses no byte to tiers: ${name} (seed ${seed})`, async (t) => run(t, name, world, seed, await RedisServer.start(t)));
}
