// What is watched: the state that the live page and `vkv top` ask for is small, made by one crossing, only when it is asked for, and shows
// no text of anyone; the page's files come from this server alone.

import test from 'ava';

import { KvCache } from 'virtual-kv';

import { native } from '#internal/device/native.js';
import { maxRuns } from '#internal/kv-cache/cache-picture.js';
import { WatchState, type ServerState } from '#internal/server/watch-state.js';

import { cacheOf, requestsOf, secrets, WatchedWorld, type WatchedOptions } from './watched-world.js';
import { slow } from '../runner/slow.js';

async function withWorld(options: WatchedOptions, body: (world: WatchedWorld) => Promise<void>): Promise<void> {
  const world = new WatchedWorld(options);
  try {
    await world.server.listen({ port: 0 });
    await body(world);
  } finally {
    await world.close();
  }
}

const stateOf = async (world: WatchedWorld, headers: Record<string, string> = {}): Promise<ServerState> =>
  await (await fetch(`${world.url}/watch/state`, { headers })).json() as ServerState;

/** Calls into the addon by caches and pools that `open` makes, during `body`. */
async function crossingsOf(open: () => WatchedWorld, body: (world: WatchedWorld, take: () => string[]) => Promise<void>): Promise<void> {
  const addon = native() as unknown as Record<string, new (...values: unknown[]) => object>;
  const calls: string[] = [];
  const undo: (() => void)[] = [];
  for (const name of ['NativeCache', 'NativePool']) {
    const original = addon[name]!;
    const noting = class extends original {};
    for (const method of Object.getOwnPropertyNames(original.prototype).filter((each) => each !== 'constructor')) {
      const call = (original.prototype as Record<string, (...values: unknown[]) => unknown>)[method]!;
      Object.defineProperty(noting.prototype, method, { value(this: unknown, ...values: unknown[]) { calls.push(`${name}.${method}`); return call.apply(this, values); } });
    }
    addon[name] = noting;
    undo.push(() => { addon[name] = original; });
  }
  let world: WatchedWorld;
  try {
    world = open();
  } finally {
    for (const each of undo) each();
  }
  await body(world, () => calls.splice(0));
  await world.close();
}

test('the state has every sequence, its rows by sharers, the queue, and pages that add up', (t) => withWorld({}, async (world) => {
  await world.fill();
  const { requests, cache: { slots, pool, pages, layout, age }, totals, recent } = await stateOf(world);
  t.is(requests.running.length, world.scheduler.runningRequests);
  t.is(requests.waitingCount, world.scheduler.waitingRequests);
  t.is(totals.completedRequests, 9);
  t.is(layout.slots, 12);
  t.is(pages.running + pages.cached + pages.idle, pool.mappedPages);
  t.is(age.rows.reduce((sum, rows) => sum + rows, 0), world.cache.counts().pooledRows);
  t.true(recent.tokensPerSecond > 0 && recent.betweenTokens.count > 0 && recent.betweenTokens.p50! <= recent.betweenTokens.p90!);
  for (const { slot, rows, runs } of slots) {
    t.deepEqual(runs.map(([end]) => end), runs.map(([end]) => end).toSorted((a, b) => a - b));
    t.is(runs.at(-1)?.[0] ?? 0, rows);
    for (const [, sharers, id] of runs) {
      const others = slots.filter((each) => each.runs.some(([, , other]) => id >= 0 && other === id));
      if (sharers > 1) t.is(others.length, sharers, `slot ${slot}, run ${id}`);
    }
  }
  t.true(slots.some(({ runs }) => runs.some(([, sharers]) => sharers > 2)));
  for (const { slot, computedTokens } of requests.running) t.is(slots.find((each) => each.slot === slot)!.length, computedTokens);
}));

test('a look takes one crossing, and shows neither texts nor tenants nor salts', (t) => crossingsOf(() => new WatchedWorld(), async (world, take) => {
  await world.server.listen({ port: 0 });
  world.ask(0, 50);
  await world.passes(10);
  t.true(take().length > 10);
  cacheOf(world.cache);
  requestsOf(world.scheduler);
  t.deepEqual(take(), ['NativePool.count']);
  const text = JSON.stringify(await stateOf(world));
  t.deepEqual(take(), ['NativePool.count']);
  t.true(text.includes('"number":1'));
  for (const secret of Object.values(secrets)) t.false(text.includes(secret), secret);
}));

test('nothing is drawn until it is looked at, and looks that follow each other closely are one', async (t) => {
  const world = new WatchedWorld();
  let [nowMs, drawn] = [1_000, 0];
  const picture = cacheOf(world.cache);
  Object.defineProperty(world.cache, 'picture', { value: () => (drawn += 1, picture) });
  const watched = new WatchState({ scheduler: world.scheduler, modelName: 'm', connections: () => 0, isClosing: () => false, now: () => nowMs });
  await world.ask(1, 20).result;
  t.is(drawn, 0);
  for (const [ms, expected] of [[0, 1], [0, 1], [249, 1], [1, 2], [10, 2]] as const) {
    nowMs += ms;
    watched.json();
    t.is(drawn, expected);
  }
  await world.close();
});

test('figures are about the last seconds, or since the last look', async (t) => {
  const world = new WatchedWorld();
  let nowMs = 0;
  const watched = new WatchState({ scheduler: world.scheduler, modelName: 'm', connections: () => 0, isClosing: () => false, now: () => nowMs });
  const recent = (): ServerState['recent'] => (JSON.parse(watched.json()) as ServerState).recent;
  await world.ask(1, 50).result;
  nowMs = 1_000;
  t.like(recent(), { windowMs: 1_000, tokensPerSecond: 50, requestsPerSecond: 1, hitRate: 0 });
  for (nowMs = 2_000; nowMs < 20_000; nowMs += 500) watched.json();
  t.like(recent(), { tokensPerSecond: 0, hitRate: null, betweenTokens: { count: 0, p50: null, p90: null, p99: null } });
  t.true(recent().windowMs >= 5_000 && recent().windowMs <= 5_500, String(recent().windowMs));
  nowMs = 60_000;
  t.is(recent().windowMs, 40_000);
  await world.close();
});

test('the history has a point for each second of the last two minutes, looked at or not, and none of a closed cache', async (t) => {
  const world = new WatchedWorld();
  let nowMs = 0;
  const watched = new WatchState({ scheduler: world.scheduler, modelName: 'm', connections: () => 0, isClosing: () => false, now: () => nowMs });
  const history = (): ServerState['history'] => (JSON.parse(watched.json()) as ServerState).history;
  t.deepEqual(history().tokensPerSecond, []);
  await world.ask(1, 50).result;
  for (nowMs = 1_000; nowMs <= 10_000; nowMs += 1_000) watched.takePoint();
  const { tokensPerSecond, hitRate, mappedPages, waiting } = history();
  t.deepEqual(tokensPerSecond.map((rate) => rate > 0), [...new Array<boolean>(5).fill(true), ...new Array<boolean>(5).fill(false)]);
  t.is(tokensPerSecond[0], 50);
  t.deepEqual([hitRate[0], hitRate.at(-1), waiting.at(-1)], [0, null, 0]);
  t.is(mappedPages.at(-1), world.cache.pool.counts().mappedPages);
  for (; nowMs <= 300_000; nowMs += 1_000) watched.takePoint();
  for (const [name, series] of Object.entries(history())) if (name !== 'everyMs') t.is((series as unknown[]).length, 120, name);
  await world.close();
  t.notThrows(() => { watched.takePoint(); });
});

test('a picture has the rows of each layer set with a window', (t) => {
  const cache = new KvCache({
    model: {
      layers: 3, kvHeads: 8, headDim: 64, dtype: 'float16',
      layerSets: [{ kind: 'full', layers: [0] }, { kind: 'window', layers: [1, 2], windowTokens: 64 }],
    },
    slots: 2, maxTokens: 1_024, memoryBudgetBytes: 2 ** 26, driver: 'host', pageBytes: 65_536, layout: 'per-layer', prefixCache: 'off', mapper: 'off',
  });
  const batch = cache.createBatch();
  const sequence = cache.acquire({ promptTokens: 400, reserve: 'none' });
  const firsts: number[] = [];
  for (const tokens of [400, 100, 100]) {
    batch.clear();
    batch.add(sequence, tokens);
    cache.prepare(batch);
    cache.commit(batch);
    // The window's two layers lie interleaved: 32 tokens a row.
    const [first, end] = cacheOf(cache).slots[0]!.windows[0]!;
    firsts.push(first);
    t.is(first, Math.floor((sequence.length - 63) / 32));
    t.is(end, Math.ceil(sequence.length / 32));
  }
  t.true(firsts[0]! < firsts[1]! && firsts[1]! < firsts[2]!, 'it slides');
  const picture = cacheOf(cache);
  t.like(picture.windows[0], { kind: 'window', layers: 2, tokens: 64, mappedPages: cache.counts().sets[1]!.mappedPages });
  t.is(picture.layout.layers, 1);
  sequence.release();
  t.is(cacheOf(cache).windows[0]!.mappedPages, 0);
  cache.close();
});

slow('256 long sequences')('its size is bounded with 256 sequences of 128 k tokens that share and part', (t) => {
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 8, dtype: 'float16' }, slots: 256, maxTokens: 131_072, memoryBudgetBytes: 2 ** 30, driver: 'host', layout: 'fused', pageBytes: 65_536,
  });
  const batch = cache.createBatch();
  const text = Int32Array.from({ length: 131_072 }, (_, at) => at % 50_000);
  for (let slot = 0; slot < 256; slot += 1) {
    const tokens = text.slice(0, 40_000 + 350 * slot);
    tokens.fill(60_000 + slot, 4_096 * (slot % 24));
    const sequence = cache.acquire({ tokens, reserve: 'none' });
    batch.clear();
    batch.add(sequence, Math.min(tokens.length, tokens.length) - sequence.cachedTokens);
    cache.prepare(batch);
    cache.commit(batch);
  }
  const picture = cacheOf(cache);
  t.is(picture.slots.length, 256);
  t.true(picture.slots.every(({ runs }) => runs.length <= maxRuns));
  t.true(picture.slots.some(({ runs }) => runs.length > 4));
  const bytes = JSON.stringify(picture).length;
  t.log(`${bytes} bytes`);
  t.true(bytes < 100_000, `${bytes}`);
  cache.close();
});

test('the state wants the key; the page, which has no data, does not; its policy lets it talk to this server only', (t) => withWorld({ apiKeys: ['k'] }, async (world) => {
  t.is((await fetch(`${world.url}/watch/state`)).status, 401);
  t.is((await stateOf(world, { authorization: 'Bearer k' })).modelName, 'storyteller');
  const page = await fetch(`${world.url}/watch`);
  const html = await page.text();
  t.is(page.status, 200);
  t.regex(page.headers.get('content-security-policy')!, /^default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'/);
  t.is(page.headers.get('x-content-type-options'), 'nosniff');
  t.notRegex(html, /<script>|<style|\son\w+=|style="/, 'nothing inline');
  for (const [, file] of html.matchAll(/(?:src|href)="(watch\/[^"]+)"/g)) {
    const answer = await fetch(`${world.url}/${file}`);
    t.is(answer.status, 200, file);
    for (const [, module] of (await answer.text()).matchAll(/from '\.\/([\w-]+\.js)'/g)) t.is((await fetch(`${world.url}/watch/${module}`)).status, 200, module);
  }
  t.is((await fetch(world.url, { redirect: 'manual' })).headers.get('location'), 'watch');
  for (const path of ['/watch/..%2findex.js', '/watch/state.js', '/watch/page.html']) t.is((await fetch(world.url + path)).status, 401, path);
  t.is((await fetch(`${world.url}/watch/nothing.js`, { headers: { authorization: 'Bearer k' } })).status, 404);
}));
