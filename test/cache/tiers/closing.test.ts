// Closing tiers ends, and dropping text, whatever a tier of a user's own does that never answers, on a clock that the test steps; and loses nothing that a tier which
// answers could have.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import test, { type ExecutionContext } from 'ava';

import { diskTier, hostTier, isKvError, type PrefixDrop, type Tier } from 'virtual-kv';

import type { LoadClock } from '#internal/tiers/load-clock.js';
import type { CacheBench, BenchOptions } from '../../helpers/cache.js';
import { replaceProcessClock, timeLoadsBy } from '../../helpers/patient.js';
import { folderOf } from '../../helpers/temporary-folder.js';
import { SteppedClock } from '../../serving/stepped-clock.js';
import { copied } from './copies-under-way.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const blocks = 40;
const tokens = blocks * 16;
const timeoutMs = 30_000;

function never<T>(): Promise<T> {
  return new Promise(() => { /* no answer */ });
}

/** A tier of whose calls the test knows which are over. */
class ClosableTier extends PlainTier {
  isClosed = false;

  override close(): Promise<void> {
    this.isClosed = true;
    return Promise.resolve();
  }
}

class Scene {
  readonly bench: CacheBench;
  readonly #clock = new SteppedClock();

  constructor(t: ExecutionContext, tiers: readonly Tier[], options: BenchOptions = {}) {
    const { now, timer } = this.#clock.options;
    const clock: LoadClock = { now, after: (wake, delayMs) => timer(wake, delayMs) };
    replaceProcessClock(t, clock);
    this.bench = benchOf(t, tiers, options);
    timeLoadsBy(this.bench.cache, clock);
  }

  get tiers() {
    return this.bench.cache.prefixes.tiers!;
  }

  /** Lets time pass; none passes while blocks are copied, by threads in a time of their own. */
  async wait(ms: number): Promise<void> {
    for (let passed = 0; passed < ms; passed += 5) {
      if (passed % 50 === 0) await copied();
      this.#clock.advance(5);
    }
  }

  after(ms: number): Promise<void> {
    return new Promise((resolve) => { this.#clock.options.timer(resolve, ms); });
  }

  /** How `closing` ended after so much time; undefined: it has not. */
  async endOf(closing: Promise<void>, ms: number): Promise<unknown> {
    let end: unknown;
    closing.then(() => { end = 'closed'; }, (error: unknown) => { end = error; });
    await this.wait(ms);
    await turn();
    return end;
  }
}

test('a put that never answers is not waited for for ever, the other tiers are closed, and its payload stays as it is', async (t) => {
  const [first, mine] = [new ClosableTier('first'), new ClosableTier('mine')];
  const scene = new Scene(t, [first, mine]);
  let held: Uint8Array | undefined;
  let answer: ((put: { isStored: true }) => void) | undefined;
  mine.put = (_record, payload) => {
    held = payload;
    return new Promise((resolve) => { answer = resolve; });
  };
  serve(scene.bench, textOf(tokens), 3);
  while (held === undefined) await turn();
  const before = held.slice();
  const closing = scene.tiers.close();
  t.is(await scene.endOf(closing, 0.9 * timeoutMs), undefined);
  const error = await scene.endOf(closing, 0.4 * timeoutMs);
  t.true(isKvError(error, 'KV_TIER_STALLED'));
  t.like(error, { details: { tiers: ['mine'], calls: 1, timeoutMs } });
  t.true(first.isClosed && mine.isClosed);
  t.is(first.blocks.size, 1, 'what was acknowledged is there');
  t.is(await scene.tiers.close().catch((again: unknown) => again), error);
  scene.bench.close();
  t.deepEqual(held, before);
  answer!({ isStored: true });
  await turn(); // nothing is unhandled
});

test('closing goes on as long as any tier answers, and loses nothing then', async (t) => {
  const mine = new ClosableTier('mine');
  const scene = new Scene(t, [hostTier({ bytes: 2 ** 24 }), mine]);
  const { put } = PlainTier.prototype;
  let begun = 0;
  mine.put = async (record, payload) => {
    begun += 1;
    await scene.after(0.8 * timeoutMs);
    return mine.isClosed ? { isStored: false, reason: 'failed' } : put.call(mine, record, payload);
  };
  serve(scene.bench, textOf(tokens), 3);
  const closing = scene.tiers.close();
  for (const puts of [16, 32, blocks]) { // so many at a time
    while (begun < puts) await turn();
    t.is(await scene.endOf(closing, 0.7 * timeoutMs), undefined);
    await scene.wait(0.11 * timeoutMs); // these end after 0.8 of it
  }
  await closing;
  t.is(mine.blocks.size, blocks);
  scene.bench.close();
});

for (const method of ['open', 'close', 'remove'] as const) {
  test(`a tier whose ${method} never answers does not keep the others open`, async (t) => {
    const [mine, other] = [new ClosableTier('mine'), new ClosableTier('other')];
    let hasBegun = false;
    mine[method] = <T>(): Promise<T> => {
      hasBegun = true;
      return never<T>();
    };
    if (method === 'remove') Object.assign(mine, { capacityBytes: 4 * 16 * 1024 });
    const scene = new Scene(t, [mine, other]);
    if (method !== 'open') await scene.tiers.ready();
    for (const first of [0, 1000]) serve(scene.bench, textOf(64, first), 3); // of the second there is room for nothing
    const closing = scene.tiers.close();
    while (!hasBegun) await turn(); // behind copies, which take a time of their own
    const error = await scene.endOf(closing, 2.5 * timeoutMs);
    t.true(isKvError(error, 'KV_TIER_STALLED'));
    t.like(error, { details: { tiers: ['mine'], calls: 1 } });
    t.true(other.isClosed);
    scene.bench.close();
  });
}

for (const method of ['open', 'put', 'remove'] as const) {
  test(`a tier whose ${method} never answers keeps no drop waiting, and is named`, async (t) => {
    const [mine, other] = [new ClosableTier('mine'), new ClosableTier('other')];
    let calls = 0;
    mine[method] = <T>(): Promise<T> => {
      calls += 1;
      return never<T>();
    };
    const scene = new Scene(t, [other, mine]);
    if (method !== 'open') await scene.tiers.ready();
    serve(scene.bench, textOf(64), 3);
    if (method === 'put') while (calls === 0) await turn();
    else {
      const settled = scene.tiers.settled();
      if (method === 'open') await scene.wait(1.2 * timeoutMs); // then texts are stored in those that are open
      await settled;
    }
    let dropped: PrefixDrop | undefined;
    const dropping = scene.bench.cache.prefixes.drop({ tokens: textOf(64) }).then((drop) => { dropped = drop; });
    await scene.wait(0.9 * timeoutMs);
    t.is(dropped, undefined);
    await scene.wait(0.3 * timeoutMs);
    await dropping;
    t.deepEqual([dropped!.unreachedTiers, other.blocks.size], [['mine'], 0]);
    await scene.endOf(scene.tiers.close(), 2.5 * timeoutMs);
    scene.bench.close();
  });
}

test('reads that are under way are told that their tier closes', async (t) => {
  const mine = new ClosableTier('mine');
  const scene = new Scene(t, [mine]);
  serve(scene.bench, textOf(tokens), 3);
  await scene.tiers.settled();
  dropFromDevice(scene.bench.cache);
  scene.tiers.hasPrefilled(tokens, 1000);
  const signals: AbortSignal[] = [];
  mine.get = (_key, _payload, signal?: AbortSignal) => {
    signals.push(signal!);
    return never();
  };
  const promotion = scene.bench.cache.prefixes.promote({ tokens: textOf(tokens) });
  await scene.wait(200);
  t.is((await promotion).end, 'recompute-cheaper');
  t.true(signals.length > 0 && signals.every(({ aborted }) => !aborted), 'its reads go on');
  t.is(await scene.endOf(scene.tiers.close(), 5), 'closed', 'nothing waits for them');
  t.true(signals.every(({ aborted }) => aborted));
  scene.bench.close();
});

test('a cache that is closed reports a tier that does not answer, after the time that it was given', async (t) => {
  const mine = new ClosableTier('mine');
  mine.close = never;
  const scene = new Scene(t, [mine], { prefixCache: { tierCloseTimeoutMs: 1000 } });
  await scene.tiers.ready();
  const { cache } = scene.bench;
  const late: unknown[] = [];
  const hear = (message: unknown): void => {
    if ((message as { cache: unknown }).cache === cache) late.push(message);
  };
  subscribe('virtual-kv:late-error', hear);
  scene.bench.close();
  await scene.wait(900);
  t.is(late.length, 0);
  await scene.wait(400);
  unsubscribe('virtual-kv:late-error', hear);
  t.like(late, [{ error: { code: 'KV_TIER_STALLED' } }]);
  t.true(isKvError(await scene.tiers.close().catch((error: unknown) => error), 'KV_TIER_STALLED'));
});

test('a cache that is refused tiers which work for another leaves them to that one when it closes', async (t) => {
  const tiers = [hostTier({ bytes: 2 ** 24 }), diskTier({ directory: folderOf(t), bytes: 2 ** 24 })];
  const bench = benchOf(t, tiers);
  await bench.cache.prefixes.tiers!.ready();
  const other = benchOf(t, tiers);
  await t.throwsAsync(other.cache.prefixes.tiers!.ready(), { code: 'KV_INVALID_OPTION' });
  await close(other);
  serve(bench, textOf(64), 3);
  await bench.cache.prefixes.tiers!.settled();
  await close(bench);
  t.deepEqual(bench.cache.prefixes.tiers!.metrics().tiers.map(({ storedBlocks }) => storedBlocks), [4, 4]);
});
