// Which functions of the package are called, counted by V8: so a cache is shown to pay nothing for what it does not use. Tests that count are
// serial: all of the process is counted.

import { Session } from 'node:inspector';

import { Driver, KvCache, type KvCacheOptions } from 'virtual-kv';

/** How often functions were called, by name. */
export type Counts = Readonly<Record<string, number>>;

/** Calls of functions in `files` while `work` ran on a cache of these options. */
export async function calledOn(options: Partial<KvCacheOptions>, files: RegExp, work: (cache: KvCache) => void | Promise<void>): Promise<Counts> {
  const driver = Driver.open('host');
  const cache = new KvCache({
    driver, model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 4, maxTokens: 64, pageBytes: 65_536, memoryBudgetBytes: 2 ** 24,
    mapper: 'off', ...options,
  });
  const called = await calledDuring(() => work(cache), files);
  cache.close();
  driver.close();
  return called;
}

/** Everything that sequences do. */
export function useSequences(cache: KvCache): void {
  const batch = cache.createBatch();
  const text = Array.from({ length: 30 }, (_, index) => index);
  const serve = (tokens: readonly number[]): ReturnType<KvCache['acquire']> => {
    const sequence = cache.acquire({ tokens });
    batch.clear();
    batch.add(sequence, tokens.length - sequence.cachedTokens);
    cache.prepare(batch);
    cache.discard(batch);
    cache.prepare(batch);
    cache.commit(batch);
    return sequence;
  };
  serve(text).release();
  const adopted = serve([...text, 1]);
  const aliased = serve([...text.slice(0, 20), 2, 3]);
  const fork = adopted.fork();
  fork.append([7]);
  batch.clear();
  batch.add(fork, 1);
  cache.prepare(batch);
  cache.commit(batch);
  aliased.truncate(5);
  cache.acquire({ promptTokens: 10 }).release();
  cache.prefixes.lookup({ tokens: text });
  for (const sequence of [fork, adopted, aliased]) sequence.release();
  cache.counts();
}

async function calledDuring(work: () => void | Promise<void>, files: RegExp): Promise<Counts> {
  const session = new Session();
  session.connect();
  try {
    session.post('Profiler.enable');
    session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
    await work();
    const called: Record<string, number> = {};
    session.post('Profiler.takePreciseCoverage', (error, { result }) => { // answers before it returns
      if (error !== null) throw error;
      for (const { url, functions } of result) {
        if (!files.test(url)) continue;
        for (const { functionName, ranges } of functions) if (ranges[0]!.count > 0) called[functionName] = (called[functionName] ?? 0) + ranges[0]!.count;
      }
    });
    return called;
  } finally {
    session.disconnect();
  }
}
