// Items of prompts: those whose tokens attend to each other are computed whole, and passes say which items and adapters they have.

import { NaiveScheduler, OfflineScheduler, OnlineScheduler, type EnginePass, type GenerationRequest, type PromptItem } from 'virtual-kv';

import { collect, promptOf, servingTests } from './serving-bench.js';

interface Chunk {
  readonly from: number;
  readonly to: number;
  readonly items: readonly PromptItem[];
  readonly adapter: string | undefined;
}

const item = (at: number, length: number, more: Partial<PromptItem> = {}): PromptItem => ({ at, length, kind: 'item', hash: `${at}`, ...more });
const request = (items: readonly PromptItem[], key = 0): GenerationRequest => ({ tokens: promptOf(300, key), items, maxNewTokens: 2, adapter: `lora ${key}` });

servingTests('no pass ends inside an item, in any scheduler, and each says which items and which adapter it has', { rows: 60 }, async ({ t, cache, engine }) => {
  const chunks: Chunk[] = [];
  const compute = (name: 'prefill' | 'decode') => (pass: EnginePass) => {
    for (let index = 0; index < pass.length; index += 1) {
      const from = pass.positions[index]!;
      chunks.push({ from, to: from + pass.tokenCounts[index]!, items: pass.items[index]!, adapter: pass.adapters[index] });
    }
    return engine[name](pass);
  };
  const watched = { vocabularyTokens: engine.vocabularyTokens, prefill: compute('prefill'), decode: compute('decode') };
  const options = { cache, engine: watched, prefillTokensPerStep: 64 };
  const first = item(10, 20);
  const last = item(200, 64);
  const whole = [first, item(40, 30), item(70, 5), last, item(280, 20)];
  const requests = [0, 1, 2].map((key) => request(whole, key));
  await collect(new NaiveScheduler(options).run(requests));
  cache.prefixes.reset();
  await collect(new OfflineScheduler(options).run(requests));
  cache.prefixes.reset();
  await Promise.all(requests.map((each) => new OnlineScheduler(options).submit(each).result));
  t.deepEqual(chunks.filter(({ to }) => whole.some(({ at, length }) => to > at && to < at + length)), []);
  for (const { from, to, items, adapter } of chunks) {
    t.deepEqual(items, whole.filter(({ at, length }) => from < at + length && to > at).map((each) => ({ ...each, indivisible: undefined })));
    t.regex(adapter!, /^lora [012]$/);
  }
  t.true(engine.largestPrefill <= 64);
});

servingTests('an item larger than a step is computed in one pass; one that may be divided is not', { rows: 60 }, async ({ t, cache, engine }) => {
  for (const [given, largest] of [[{}, 150], [{ indivisible: false }, 64], [{ kind: 'embedding' }, 64], [{ kind: 'embedding', indivisible: true }, 150]] as const) {
    engine.largestPrefill = 0;
    const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 64 });
    const large = scheduler.submit({ ...request([item(100, 150, given)]), caching: 'off' });
    await Promise.all([large.result, scheduler.submit({ tokens: promptOf(20, 5), maxNewTokens: 2 }).result]);
    t.is(engine.largestPrefill, largest);
  }
});
