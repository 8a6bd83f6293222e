// What side-views.test.ts runs in processes of their own, since V8 counts the memory that views show for a whole thread:
// `node --expose-gc viewed-hits.js <scenario>` writes what it saw as JSON.

import { once } from 'node:events';
import { constants, PerformanceObserver } from 'node:perf_hooks';
import { setImmediate } from 'node:timers/promises';
import { isMainThread, Worker, workerData } from 'node:worker_threads';

import { KvCache, type Sequence, type SideView } from 'virtual-kv';

const MiB = 2 ** 20;
const names = ['first', 'second', 'third'];
/** Of each view: V8 collects when it counts 64 MiB more than after the last collection. */
const viewBytes = 40 * MiB;
const tokens = 1024;
/** Hits in a row without a collection of garbage that are enough, and those that are tried. */
const quietHits = 50;
const mostHits = 2_000;

/** What Node says of a garbage collection. */
interface Collection {
  readonly detail: { readonly kind: number };
}

function written(): { readonly cache: KvCache; readonly sequence: Sequence } {
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' }, slots: 3, maxTokens: tokens, memoryBudgetBytes: 2 ** 24, driver: 'host',
    pageBytes: MiB / 16, mapper: 'off', sideTensors: Object.fromEntries(names.map((name) => [name, { width: viewBytes / tokens, dtype: 'int8' }])),
  });
  const sequence = cache.acquire({ promptTokens: tokens });
  const batch = cache.createBatch();
  batch.add(sequence, tokens);
  cache.prepare(batch);
  const rows = new Int8Array(viewBytes).fill(7);
  cache.writeSide(batch, Object.fromEntries(names.map((name) => [name, rows])));
  cache.commit(batch);
  return { cache, sequence };
}

/** Reads all rows of a text once, as the next stage does, and hands them to `look` while they are there. */
function hit(sequence: Sequence, look = (_views: readonly Readonly<SideView>[]): void => {}): void {
  const fork = sequence.fork();
  const handOver = fork.handOver();
  const views = names.map((name) => handOver.rows(name));
  if (views.some((view) => view.length !== viewBytes || view.at(-1) !== 7)) throw new Error('wrong rows');
  look(views);
  handOver.close();
  fork.release();
}

/** A cache that is neither closed nor kept, with views of its own. */
function leaveOpen(): void {
  const { sequence } = written();
  hit(sequence);
  sequence.handOver().rows('second');
}

const scenarios: Readonly<Record<string, () => Promise<unknown>>> = {
  'many hits': async () => {
    const { cache, sequence } = written();
    let isQuiet = true;
    const observer = new PerformanceObserver((list) => {
      if (list.getEntries().some((entry) => (entry as unknown as Collection).detail.kind === constants.NODE_PERFORMANCE_GC_MAJOR)) isQuiet = false;
    });
    observer.observe({ entryTypes: ['gc'] });
    let [hits, quiet] = [0, 0];
    while (quiet < quietHits && hits < mostHits) {
      hit(sequence);
      await setImmediate(); // the observer is told between turns of the event loop
      hits += 1;
      quiet = isQuiet ? quiet + 1 : 0;
      isQuiet = true;
    }
    observer.disconnect();
    cache.close();
    return { hits, quiet };
  },
  'every end of a view': async () => {
    const before = process.memoryUsage().external;
    const { cache, sequence } = written();
    hit(sequence);
    hit(sequence, (views) => { // Node 22 and later: V8 counts them elsewhere then
      for (const { buffer } of views) (buffer as ArrayBuffer & { transfer?: () => ArrayBuffer }).transfer?.();
    });
    hit(sequence);
    cache.close();
    for (let round = 0; round < 3; round += 1) {
      leaveOpen();
      await collectGarbage();
    }
    for (const ending of ['ends', 'exits']) {
      const worker = new Worker(__filename, { workerData: { scenario: `a thread that ${ending}` } });
      const [code] = await once(worker, 'exit') as [number];
      if (code !== 0) throw new Error(`the thread that ${ending} gave ${code}`);
    }
    await collectGarbage();
    return { leftMiB: (process.memoryUsage().external - before) / MiB };
  },
  'a thread that ends': () => {
    leaveOpen();
    return Promise.resolve();
  },
  'a thread that exits': () => {
    const { sequence } = written();
    hit(sequence);
    hit(sequence, () => { process.exit(); });
    return Promise.resolve();
  },
};

async function collectGarbage(): Promise<void> {
  for (let round = 0; round < 5; round += 1) {
    globalThis.gc!();
    await setImmediate(); // finalizers run
  }
}

const scenario = isMainThread ? process.argv[2]! : (workerData as { readonly scenario: string }).scenario;
void scenarios[scenario]!().then((seen) => { if (isMainThread) console.log(JSON.stringify(seen)); });
