// A replay with tiers below its device: what one request computed later ones find there, every byte of it verified, and the result says
// what came from where.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { diskTier, Driver, hostTier } from 'virtual-kv';

import { replay } from '#internal/replay/replay.js';
import { isSound } from '#internal/replay/result.js';
import { SourceTimeline } from '#internal/replay/source-timeline.js';
import type { TraceRequest } from '#internal/replay/trace-request.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { replaceProcessClock } from '../helpers/patient.js';
import { slow } from '../runner/slow.js';

const MiB = 2 ** 20;
const folder = mkdtempSync(path.join(tmpdir(), 'vkv-replay-tiers-'));
test.after.always(() => { rmSync(folder, { recursive: true, force: true }); });

/** Conversations that take turns, each longer than the one before: more text than the device has room for. */
function trace(): TraceRequest[] {
  return Array.from({ length: 32 }, (_, line) => {
    const [conversation, turn] = [line % 8, Math.floor(line / 8)];
    const blocks = 2 + turn;
    const hashIds = Int32Array.from({ length: blocks }, (__, block) => 1_000 * (conversation + 1) + block);
    return { line: line + 1, arrivalMs: 0, promptTokens: 512 * blocks - 100, outputTokens: 3, hashIds };
  });
}

/** 1 KiB a token: 2,048 tokens on the device. */
const common = {
  model: { layers: 2, kvHeads: 1, headDim: 128, dtype: 'float16' }, driver: 'host', layout: 'fused', pageBytes: 65_536, memoryBytes: 4 * MiB,
  maxTokens: 8_192, maxBatch: 1, prefixCache: 'on', verify: 'full', prefillTokensPerSecond: 1, // loading is always worth it
} as const;

slow('replays a trace with tiers')('what the device has no room for comes from tiers, and every byte of it is right', async (t) => {
  replaceProcessClock(t);
  const disk = (): ReturnType<typeof diskTier> => diskTier({
    directory: path.join(folder, 'store'), bytes: 128 * MiB, admit: 'all', durability: 'none', direct: false,
  });
  const { result, sources } = await replay({ ...common, trace: trace(), tiers: [hostTier({ bytes: 16 * MiB }), disk()] });
  t.true(isSound(result));
  t.is(result.completedRequests, 32);
  const { promptTokensBy, firstTokenMsBy, promotions, tiers } = result.tiers!;
  t.is(Object.values(promptTokensBy).reduce((sum, tokens) => sum + tokens, 0), result.promptTokens);
  t.true(promptTokensBy['host']! > 0 && promptTokensBy['disk']! > 0, JSON.stringify(promptTokensBy));
  t.is(promptTokensBy['computed'], result.promptTokens - result.cachedTokens);
  t.is(Object.values(firstTokenMsBy).reduce((sum, { requests }) => sum + requests, 0), 32);
  const { complete, 'no-memory': noMemory, ...others } = promotions; // which of the two depends on when copies end
  t.is(complete! + noMemory!, 24, 'one for each turn but the first');
  t.true(complete! > 8);
  t.deepEqual(Object.values(others), [0, 0, 0, 0, 0, 0]);
  t.deepEqual(tiers.map(({ name, damagedBlocks }) => [name, damagedBlocks]), [['host', 0], ['disk', 0]]);
  t.true(sources.length > 5);
  const bare = await replay({ ...common, trace: trace() });
  t.true(bare.result.cachedTokens < result.cachedTokens);
  t.is(bare.result.tiers, null);
  const again = await replay({ ...common, trace: trace(), tiers: [disk()] });
  t.true(isSound(again.result));
  t.true(again.result.hitRate > result.hitRate, 'a store of an earlier replay is found again');
  const otherBytes = await replay({ ...common, trace: trace(), seed: 2, tiers: [disk()] });
  t.true(isSound(otherBytes.result), 'and not that of another seed');
});

test('many sequences at once load from tiers, in the time of the trace', async (t) => {
  const { result } = await replay({
    ...common, maxBatch: 6, memoryBytes: 16 * MiB, arrivals: 'trace', trace: trace(), tiers: [hostTier({ bytes: 64 * MiB })],
  });
  t.true(isSound(result));
  t.is(result.completedRequests, 32);
  t.true(result.hitRate > 0.3);
});

test('tiers need the prefix cache', async (t) => {
  await t.throwsAsync(replay({ ...common, prefixCache: 'off', trace: trace(), tiers: [hostTier({ bytes: MiB })] }), { code: 'KV_INVALID_OPTION' });
});

test('a timeline of sources keeps every token, however long the run', (t) => {
  const timeline = new SourceTimeline(['a', 'b'], 1);
  for (let at = 0; at < 10_000; at += 1) timeline.record(at, { a: 2, b: at % 2 });
  t.deepEqual(timeline.totals(), { a: 20_000, b: 5_000 });
  t.true(timeline.points().length <= 256);
  for (let ms = 1; ms <= 100; ms += 1) timeline.firstToken('b', ms);
  t.deepEqual(timeline.firstTokenTimes(), { b: { requests: 100, p10Ms: 11, p50Ms: 51, p90Ms: 91 } });
});

test('where a tier fails to close, a replay fails with its error, and has closed all else', async (t) => {
  using driver = Driver.open('host');
  const tier = new PlainTier('plain');
  tier.close = () => Promise.reject(new Error('no space is left'));
  await t.throwsAsync(replay({ ...common, driver, trace: trace().slice(0, 1), tiers: [tier] }), { message: 'no space is left' });
  t.is(driver.memory().livePages, 0);
});
