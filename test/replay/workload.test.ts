import test from 'ava';

import { HASH_BLOCK_TOKENS, type TraceRequest } from '#internal/replay/trace-request.js';
import { Workload } from '#internal/replay/workload.js';

test('the same seed gives the same requests, another seed different ones', (t) => {
  const workload = new Workload({ requests: 200, seed: 7 });
  t.deepEqual([...workload], [...workload]);
  t.deepEqual([...workload], [...new Workload({ requests: 200, seed: 7 })]);
  t.notDeepEqual([...workload], [...new Workload({ requests: 200, seed: 8 })]);
});

test('the first requests of seed 1 never change', (t) => {
  t.deepEqual([...new Workload({ requests: 3 })].map(({ hashIds, ...lengths }) => ({ ...lengths, blocks: hashIds?.length })), [
    { line: 1, arrivalMs: 0, promptTokens: 1_048, outputTokens: 42, blocks: 3 },
    { line: 2, arrivalMs: 307, promptTokens: 1_446, outputTokens: 116, blocks: 3 },
    { line: 3, arrivalMs: 409, promptTokens: 10_696, outputTokens: 7, blocks: 21 },
  ]);
});

test('its shape is that of a public trace', (t) => {
  const requests = [...new Workload({ requests: 5_000, seed: 3 })];
  const sorted = (of: (request: TraceRequest) => number): number[] => requests.map(of).sort((a, b) => a - b);
  const prompts = sorted(({ promptTokens }) => promptTokens);
  const outputs = sorted(({ outputTokens }) => outputTokens);
  const share = (values: readonly number[], at: number): number => values[Math.floor(values.length * at)]!;
  t.is(requests.length, 5_000);
  t.true(share(prompts, 0.5) > 1_000 && share(prompts, 0.5) < 2_500, `median prompt ${share(prompts, 0.5)}`);
  t.true(share(prompts, 0.99) > 8_000, 'a long tail of prompts');
  t.true(prompts[0]! >= 1 && prompts.at(-1)! <= 16_384);
  t.true(outputs[0]! >= 1 && share(outputs, 0.5) < 100, 'answers are short');
  const gaps = requests.slice(1).map(({ arrivalMs }, at) => arrivalMs - requests[at]!.arrivalMs);
  const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
  t.true(gaps.every((gap) => gap >= 0) && mean > 200 && mean < 300, `mean gap ${mean}`);
  t.true(gaps.filter((gap) => gap > 4 * mean).length > 50, 'bursts and pauses');
});

test('conversations share what was said before, block by block', (t) => {
  const requests = [...new Workload({ requests: 2_000, seed: 5 })];
  const known = new Set<number>();
  let sharedTokens = 0;
  let promptTokens = 0;
  for (const { hashIds, promptTokens: tokens } of requests) {
    t.is(hashIds!.length, Math.ceil(tokens / HASH_BLOCK_TOKENS));
    const ids = [...hashIds!];
    const shared = ids.findIndex((id) => !known.has(id));
    t.true(ids.slice(shared).every((id) => !known.has(id)) || shared < 0, 'known blocks come first, as a prefix');
    sharedTokens += (shared < 0 ? ids.length : shared) * HASH_BLOCK_TOKENS;
    promptTokens += tokens;
    for (const id of ids) known.add(id);
  }
  t.true(sharedTokens / promptTokens > 0.2 && sharedTokens / promptTokens < 0.7, `${sharedTokens / promptTokens} shared`);
});

test('a whole prompt is never longer than asked', (t) => {
  const requests = [...new Workload({ requests: 500, maxPromptTokens: 300 })];
  t.true(requests.every(({ promptTokens, hashIds }) => promptTokens <= 300 && hashIds!.length === 1));
});
