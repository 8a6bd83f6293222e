import type { ExecutionContext } from 'ava';

import { evictionPolicies, evictionPolicyNames, type EvictionPolicyName } from '#internal/prefix/index.js';
import { MockDevice } from '#internal/device/mock-device.js';
import { replay, type ReplayOptions } from '#internal/replay/replay.js';
import type { ReplayResult } from '#internal/replay/result.js';
import { TraceReader } from '#internal/replay/trace-reader.js';
import { HASH_BLOCK_TOKENS, type TraceRequest } from '#internal/replay/trace-request.js';
import { Workload } from '#internal/replay/workload.js';
import { replayIndex } from './index-replay.js';
import { testWithTrace, traceFile } from './traces.js';
import { slow } from '../runner/slow.js';

const ROW_TOKENS = 16;
const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

async function mooncake(limit: number): Promise<TraceRequest[]> {
  const requests: TraceRequest[] = [];
  for await (const request of new TraceReader({ source: traceFile('mooncake-synthetic.jsonl') })) {
    if (requests.push(request) === limit) break;
  }
  return requests;
}

/** What the least recently used blocks are, in two ways: `whole` keeps full blocks only, `partial` also the last one of a prompt. */
type BlockLru = 'whole' | 'partial';

/**
 * Block-LRU, exactly: each block is known by all ids up to its own and by its place; the least recently used goes first, of
 * one prompt the last. One token at least is computed, as everywhere.
 */
function blockLruHits(requests: readonly TraceRequest[], poolTokens: number, kind: BlockLru): number {
  const perId = HASH_BLOCK_TOKENS / ROW_TOKENS;
  const names = new Map<string, number>(); // of what an id says after those before it
  const used = new Set<number>(); // in order of use
  let hitTokens = 0;
  for (const { promptTokens, hashIds } of requests) {
    let parent = -1;
    const prefixes = Array.from(hashIds!, (id) => {
      const key = `${parent},${id}`;
      parent = names.get(key) ?? names.size;
      names.set(key, parent);
      return parent;
    });
    const whole = Math.floor(promptTokens / ROW_TOKENS);
    const rest = kind === 'partial' ? promptTokens % ROW_TOKENS : 0;
    const tokensIn = (block: number): number => (block < whole ? ROW_TOKENS : rest);
    const blockAt = (block: number): number =>
      (prefixes[Math.floor(block / perId)]! * perId + (block % perId)) * ROW_TOKENS + (tokensIn(block) % ROW_TOKENS);
    const blocks = whole + Math.sign(rest);
    for (let block = 0; block < blocks && used.has(blockAt(block)); block += 1) {
      hitTokens += block * ROW_TOKENS + tokensIn(block) < promptTokens ? tokensIn(block) : tokensIn(block) - 1;
    }
    for (let block = blocks - 1; block >= 0; block -= 1) {
      used.delete(blockAt(block));
      used.add(blockAt(block));
    }
    let surplus = used.size - Math.floor(poolTokens / ROW_TOKENS);
    for (const oldest of used) {
      if (surplus <= 0) break;
      used.delete(oldest);
      surplus -= 1;
    }
  }
  return hitTokens;
}

/** The same prompts, cut to whole blocks. */
function cutToBlocks(requests: readonly TraceRequest[]): TraceRequest[] {
  return requests.filter(({ promptTokens }) => promptTokens >= ROW_TOKENS).map((request) => {
    const promptTokens = request.promptTokens - (request.promptTokens % ROW_TOKENS);
    return { ...request, promptTokens, hashIds: request.hashIds!.subarray(0, Math.ceil(promptTokens / HASH_BLOCK_TOKENS)) };
  });
}

function indexHits(requests: readonly TraceRequest[], poolTokens: number, policy: EvictionPolicyName): number {
  return sum(replayIndex({ requests, tokensPerRow: ROW_TOKENS, poolTokens, policy: evictionPolicies[policy]() }));
}

function shareOf(tokens: number, requests: readonly TraceRequest[]): string {
  return `${((100 * tokens) / sum(requests.map(({ promptTokens }) => promptTokens))).toFixed(3)} %`;
}

/** Returns what LRU of the index finds. */
function compare(t: ExecutionContext, requests: readonly TraceRequest[], poolTokens: number): number {
  const [found] = ([['partial', requests], ['whole', cutToBlocks(requests)]] as const).map(([kind, prompts]) => {
    const ours = indexHits(prompts, poolTokens, 'lru');
    const exact = blockLruHits(prompts, poolTokens, kind);
    t.log(`${kind} blocks, ${poolTokens} tokens: index ${shareOf(ours, prompts)}, block-LRU ${shareOf(exact, prompts)}`);
    t.true(ours >= exact, `${kind}: ${ours} tokens, block-LRU ${exact}`);
    return ours;
  });
  return found!;
}

slow('replays traces')('LRU of the index is not below block-LRU on the generated workload', (t) => {
  const requests = [...new Workload({ requests: 1_500, seed: 5, maxPromptTokens: 8_192 })];
  for (const poolTokens of [30_000, 100_000, 300_000]) compare(t, requests, poolTokens);
});

testWithTrace('on Mooncake, whole, 3,000,000 tokens, LRU is not below block-LRU, and adaptive beats it', 'mooncake-synthetic.jsonl', async (t) => {
  const requests = await mooncake(Infinity);
  const lru = compare(t, requests, 3_000_000);
  const adaptive = indexHits(requests, 3_000_000, 'adaptive');
  t.log(`adaptive ${shareOf(adaptive, requests)}`);
  t.true(adaptive > 1.05 * lru, `adaptive ${adaptive} tokens, LRU ${lru}`);
});

/** 256 B a token: 16 of them in a page of 4 KiB, which is a row. */
const TINY = { model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, layout: 'fused', pageBytes: 4_096 } as const;

async function replayTiny(requests: readonly TraceRequest[], options: Partial<ReplayOptions>): Promise<ReplayResult> {
  const device = new MockDevice({ granularityBytes: 4_096, memoryBytes: 2 ** 30, backing: options.verify === 'off' ? 'none' : 'real' });
  try {
    const { result } = await replay({
      ...TINY, trace: requests, driver: device.driver, memoryBytes: 2 ** 30, maxTokens: 196_608, maxBatch: 1, promptOnly: true,
      prefixCache: 'on', prefillTokensPerStep: 196_608, ...options,
    });
    device.assertNoLeaks();
    return result;
  } finally {
    device.close();
  }
}

async function compareWithReplay(
  t: ExecutionContext, requests: readonly TraceRequest[], poolTokens: number, policy: EvictionPolicyName,
): Promise<void> {
  const found = indexHits(requests, poolTokens, policy);
  const result = await replayTiny(requests, { policy, poolRows: poolTokens / ROW_TOKENS, verify: 'off' });
  t.is(result.cache.tokensPerRow, ROW_TOKENS);
  t.true(found > 0);
  t.like(result, { completedRequests: requests.length, cachedTokens: found, generatedTokens: 0, leakedPages: 0 });
  t.is(result.adoptedTokens + result.aliasedTokens + result.copiedTokens, found);
}

for (const policy of evictionPolicyNames) {
  slow('replays traces')(`a replay one by one finds in its cache what the index alone finds: ${policy}`, async (t) => {
    await compareWithReplay(t, [...new Workload({ requests: 400, seed: 6, maxPromptTokens: 8_192 })], 64_000, policy);
  });
}

testWithTrace('a replay of Mooncake one by one finds in its cache what the index alone finds', 'mooncake-synthetic.jsonl', async (t) => {
  await compareWithReplay(t, await mooncake(500), 600_000, 'lru');
});

slow('replays traces')('bounded by its memory, it finds as much as with a pool of that size, every token verified', async (t) => {
  const requests = [...new Workload({ requests: 300, seed: 6, maxPromptTokens: 8_192 })];
  const poolTokens = 64_000;
  const found = indexHits(requests, poolTokens, 'lru');
  const { cachedTokens, mismatches, leakedPages } = await replayTiny(requests, {
    policy: 'lru', memoryBytes: (poolTokens / ROW_TOKENS) * TINY.pageBytes, verify: 'full',
  });
  t.deepEqual([mismatches, leakedPages], [0, 0]);
  t.true(Math.abs(cachedTokens / found - 1) < 0.02, `${cachedTokens} tokens, the index ${found}`);
});
