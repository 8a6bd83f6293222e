// Priority levels of text in tiers that outlive a cache: the next one, also in another process, drops the lowest level first and keeps what was pinned,
// of text that no request has used since.

import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { diskTier, lru, priority, type EvictionPolicyFactory, type KvCache, type Tier } from 'virtual-kv';

import { benchOf, close, serve, textOf as tokensOf } from './tier-bench.js';
import type { ChildReport, ChildTask } from './lasting-child.js';
import { dropFromDevice } from './device-index.js';
import { LastingCache, textOf, textTokens } from './lasting-cache.js';
import { PlainTier } from './plain-tier.js';
import { deadlineMs } from '../../helpers/patient.js';
import { slow } from '../../runner/slow.js';

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-levels-'));
test.after.always(() => { fs.rmSync(folder, { recursive: true, force: true }); });

const MiB = 2 ** 20;
/** Has room for 34 texts. */
const bytes = 16 * MiB;
/** Numbers of texts, by what becomes of them. */
const [pinned, middle, low, later] = [range(0, 2), range(2, 6), range(6, 33), range(33, 60)];

function range(from: number, to: number): number[] {
  return Array.from({ length: to - from }, (_, at) => from + at);
}

async function open(directory: string, policy: EvictionPolicyFactory = priority({ pinnedLevel: 200 })): Promise<LastingCache> {
  const cache = new LastingCache([diskTier({ directory, bytes, admit: 'all' })], { prefixCache: { policy } });
  await cache.ready();
  return cache;
}

/** What a disk is filled with first: text that nothing uses later. */
const first = { texts: [...pinned, ...middle, ...low], levels: [...pinned.map(() => 200), ...middle.map(() => 3), ...low.map(() => 0)] };

async function fill(directory: string): Promise<void> {
  const world = await open(directory);
  for (const [at, text] of first.texts.entries()) world.compute(text, first.levels[at]);
  await world.close();
}

/** Tokens of these texts that tiers have. */
function storedTokens(cache: KvCache, texts: readonly number[]): number {
  return texts.reduce((sum, text) => sum + cache.prefixes.explain({ tokens: textOf(text) }).tiers!.reachableTokens, 0);
}

async function assertKept(t: ExecutionContext, directory: string): Promise<void> {
  const world = await open(directory);
  for (const texts of [pinned, middle, later]) t.is(storedTokens(world.cache, texts), texts.length * textTokens);
  t.true(storedTokens(world.cache, low) < 4 * textTokens, 'what is of the lowest level has gone');
  for (const text of pinned) t.like(await world.serve(text), { wrong: 0, from: { disk: textTokens } });
  await world.close();
}

slow('writes a disk again and again')('a disk that is opened again drops the text of the lowest level first, and keeps what was pinned', async (t) => {
  const directory = path.join(folder, 'again');
  await fill(directory);
  const world = await open(directory);
  t.is(storedTokens(world.cache, first.texts), first.texts.length * textTokens);
  for (const text of later) world.compute(text, 1);
  await world.close();
  await assertKept(t, directory);
});

slow('writes a disk again and again')('so does another process', async (t) => {
  const directory = path.join(folder, 'process');
  const inChild = (task: Pick<ChildTask, 'texts' | 'levels'>): void => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [path.join(__dirname, 'lasting-child.js'), JSON.stringify({ work: 'compute', directory, bytes, ...task })], { encoding: 'utf8' });
    t.is(status, 0, stderr);
    t.true((JSON.parse(stdout) as ChildReport).found.every(({ wrong }) => wrong === 0));
  };
  inChild(first);
  inChild({ texts: later, levels: later.map(() => 1) });
  await assertKept(t, directory);
});

slow('writes a disk again and again')('text of a lower level pushes out none that a disk has from before', async (t) => {
  const directory = path.join(folder, 'refused');
  const world = await open(directory);
  for (const text of range(0, 34)) world.compute(text, 9);
  await world.close();
  const next = await open(directory);
  for (const text of range(34, 60)) next.compute(text, 8);
  await next.close();
  const last = await open(directory);
  t.is(storedTokens(last.cache, range(0, 34)), 34 * textTokens);
  t.true(storedTokens(last.cache, range(36, 60)) <= textTokens, 'there was room for one');
  await last.close();
});

slow('writes a disk again and again')('levels on a disk count for nothing under a policy without levels, which leaves them there', async (t) => {
  const directory = path.join(folder, 'lru');
  await fill(directory);
  const plain = await open(directory, lru());
  for (const text of later.slice(0, 4)) plain.compute(text);
  await plain.close();
  const again = await open(directory, lru());
  const lost = first.texts.filter((text) => storedTokens(again.cache, [text]) < textTokens);
  t.true(lost.length > 0);
  await again.close();
  const world = await open(directory);
  const kept = [...pinned, ...middle].filter((text) => !lost.includes(text));
  for (const text of later) world.compute(text, 1);
  await world.cache.prefixes.tiers!.settled();
  t.is(storedTokens(world.cache, kept), kept.length * textTokens);
  await world.close();
});

test('a tier is told the level of a block with it, and when it rises later, of all the text before it, too', async (t) => {
  const tier = Object.assign(new PlainTier('mine'), {
    told: [] as [string, number][],
    setLevel(key: string, level: number): void | Promise<void> {
      if (level === 7) throw new Error('mine');
      if (level === 8) return Promise.reject(new Error('mine'));
      this.told.push([key, level]);
    },
  });
  const bench = benchOf(t, [tier], { prefixCache: { policy: priority() } });
  const { prefixes } = bench.cache;
  serve(bench, tokensOf(48), 3);
  await prefixes.tiers!.settled();
  const keys = [...tier.blocks.keys()];
  t.deepEqual([...tier.blocks.values()].map(({ record }) => record.level), [0, 0, 0]);
  const promote = async (count: number, level: number): Promise<void> => {
    dropFromDevice(bench.cache);
    await prefixes.promote({ tokens: tokensOf(count), priority: level, deadlineMs });
  };
  await promote(32, 5);
  t.deepEqual(tier.told, [[keys[1]!, 5], [keys[0]!, 5]]);
  await promote(48, 2); // the first two have more
  t.deepEqual(tier.told.slice(2), [[keys[2]!, 2]]);
  await promote(48, 7);
  t.is(bench.cache.metrics.lateErrors, 3, 'what it throws is reported');
  await promote(48, 8);
  t.is(bench.cache.metrics.lateErrors, 6, 'as is what it rejects with');
  await close(bench);
});

test('of the levels that a tier names when it is opened, none that is no level is believed', async (t) => {
  const tier = new PlainTier('mine');
  const policy = { prefixCache: { policy: priority() } };
  const first = benchOf(t, [tier], policy);
  serve(first, tokensOf(48), 3);
  await close(first);
  const [one, two, three] = [...tier.blocks.values()];
  for (const [kept, level] of [[one, NaN], [two, '9'], [three, 300]] as const) Object.assign(kept!.record, { level });
  const again: [string, number][] = [];
  const next = Object.assign(new PlainTier('mine'), { setLevel: (key: string, level: number) => { again.push([key, level]); } });
  for (const [key, block] of tier.blocks) next.blocks.set(key, block);
  const bench = benchOf(t, [next as Tier], policy);
  await bench.cache.prefixes.tiers!.ready();
  bench.cache.verify();
  dropFromDevice(bench.cache);
  await bench.cache.prefixes.promote({ tokens: tokensOf(48), priority: 1, deadlineMs });
  t.is(again.length, 3, 'each had level 0');
  await close(bench);
});
