// What the requests of a whole trace map, one by one, where every cached text can have a slot and memory is full: rows that a slot has
// already cost no call of the driver. Rows of 16 tokens, memory for 3,000,000 of them, 1,024 slots, on a device that only counts.

import * as path from 'node:path';

import { KvCache } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { RequestText } from '#internal/replay/request-text.js';
import { TraceReader } from '#internal/replay/trace-reader.js';
import { Workload } from '#internal/replay/workload.js';
import { format, type BenchResult } from './measure.js';
import { prefixTraceFile } from './replay-prefixes.js';

const MiB = 2 ** 20;
const rowTokens = 16;

export async function takeOver(): Promise<BenchResult[]> {
  const device = new MockDevice({ memoryBytes: 378_000 * MiB, backing: 'none', journalEntries: 0 });
  const cache = new KvCache({
    model: { layers: 32, kvHeads: 8, headDim: 128, dtype: 'float16' }, layout: 'fused', slots: 1_024, maxTokens: 196_608,
    driver: device.driver, memoryBudgetBytes: 375_000 * MiB, mapper: 'off',
  });
  const batch = cache.createBatch();
  const maps = (): number => cache.metrics.foregroundMaps + cache.metrics.aliasMaps;
  let ownId = 2 ** 31 / 512 - 1;
  let fullAt = { maps: 0, unmaps: 0, requests: 0, rows: 0 };
  let requests = 0;
  let rows = 0;
  const source = prefixTraceFile === undefined ? new Workload({ requests: 4_000 }) : new TraceReader({ source: prefixTraceFile });
  for await (const request of source) {
    const text = new RequestText({ request, ownId, seed: 1 });
    ownId -= text.ownIds;
    const sequence = cache.acquire({ tokens: text.tokens(request.promptTokens) });
    batch.clear();
    batch.add(sequence, request.promptTokens - sequence.cachedTokens);
    cache.prepare(batch);
    cache.commit(batch);
    sequence.release();
    requests += 1;
    rows += Math.ceil(request.promptTokens / rowTokens);
    if (fullAt.requests === 0 && cache.metrics.unmaps > 0) fullAt = { maps: maps(), unmaps: cache.metrics.unmaps, requests, rows };
  }
  const served = requests - fullAt.requests;
  const { hitRate } = cache.prefixes.metrics;
  const perRequest = { maps: (maps() - fullAt.maps) / served, unmaps: (cache.metrics.unmaps - fullAt.unmaps) / served, rows: (rows - fullAt.rows) / served };
  cache.close();
  device.close();
  return [{
    name: `${prefixTraceFile === undefined ? 'the generated workload' : path.basename(prefixTraceFile)}, memory full, 1,024 slots: mappings of a request`,
    value: `${format(perRequest.maps, 0)} rows mapped, ${format(perRequest.unmaps, 0)} unmapped; ${format(100 * hitRate, 1)} % of the tokens found`,
    against: `${format(perRequest.rows, 0)} rows of a prompt`,
    isGoalMet: prefixTraceFile === undefined ? undefined : perRequest.maps <= 300,
    numbers: { ...perRequest, hitRate },
  }];
}
