// What processes share through a Redis: what one stores another reads, and two that store the same at once end with one value.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import * as path from 'node:path';

import { Redis } from 'ioredis';
import test, { type ExecutionContext } from 'ava';

import type { MadeBlock } from '#internal/tiers/contract-store.js';
import { clusterAt, loadClientPackage } from '#internal/tiers/redis/redis-client.js';
import { RedisServer } from '../helpers/redis-server.js';
import { redisTest } from '../helpers/redis-test.js';
import { refuses } from '../helpers/refuses.js';
import { blocksOf, keyOf, namespaceOf, openTier, read } from './redis-world.js';
import { slow } from '../runner/slow.js';

interface Report {
  readonly results: readonly boolean[];
  readonly found: number;
  readonly stored: number;
  readonly putsAlreadyThere: number;
}

/** Starts a process; call what it resolves with to let it work. */
async function startChild(t: ExecutionContext, ...options: readonly string[]): Promise<() => Promise<Report>> {
  const child = fork(path.join(__dirname, 'redis-child.js'), options, { serialization: 'advanced' });
  t.teardown(() => child.kill('SIGKILL'));
  await once(child, 'message');
  return async () => {
    const exit = once(child, 'exit');
    const report = once(child, 'message');
    child.send('go');
    const [message] = await report as [Report];
    t.deepEqual(await exit, [0, null], 'the process ends by itself');
    return message;
  };
}

redisTest('what a process stores another reads, byte for byte', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const [put, get] = await Promise.all([startChild(t, server.url, namespace, 'put', '20'), startChild(t, server.url, namespace, 'get', '20')]);
  const written = await put();
  t.deepEqual(written, { results: Array<boolean>(20).fill(true), found: 20, stored: 20, putsAlreadyThere: 0 });
  t.deepEqual(await get(), { results: Array<boolean>(20).fill(true), found: 20, stored: 0, putsAlreadyThere: 0 });
  const tier = await openTier(t, namespace, { url: server.url });
  for (const block of blocksOf(namespace, 20)) t.is(await read(tier, block), 'exact');
});

redisTest('processes that store the same blocks at once end with one value of each', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const children = await Promise.all([1, 2, 3].map(() => startChild(t, server.url, namespace, 'put', '20')));
  const reports = await Promise.all(children.map((go) => go()));
  for (const { results, stored, putsAlreadyThere } of reports) {
    t.true(results.every(Boolean));
    t.is(stored + putsAlreadyThere, 20);
  }
  t.is(await server.client.dbsize(), 20);
  const tier = await openTier(t, namespace, { url: server.url });
  for (const block of blocksOf(namespace, 20)) t.is(await read(tier, block), 'exact');
}, slow('starts processes'));

redisTest('a block is one key that expires; storing it again lets it live on and sends nothing', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url, ttlSeconds: 1_000 });
  const block = blocksOf(namespace, 1)[0]!;
  await tier.put(block.record, block.payload);
  t.deepEqual(await server.client.keys('*'), [keyOf(namespace, block)]);
  t.true(await server.client.ttl(keyOf(namespace, block)) > 900);
  await server.client.expire(keyOf(namespace, block), 100);
  t.deepEqual(await tier.put(block.record, block.payload), { isStored: true });
  t.true(await server.client.ttl(keyOf(namespace, block)) > 900);
  const { blocks, putsAlreadyThere } = tier.statistics();
  t.deepEqual({ blocks, putsAlreadyThere }, { blocks: 1, putsAlreadyThere: 1 });
});

redisTest('a block that is read lives on as long as one that is stored; a damaged value does not', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url, ttlSeconds: 1_000, damaged: 'keep' });
  const [block, damaged, other] = blocksOf(namespace, 3) as [MadeBlock, MadeBlock, MadeBlock];
  await tier.put(block.record, block.payload);
  await server.client.expire(keyOf(namespace, block), 100);
  await server.client.set(keyOf(namespace, damaged), 'no block', 'EX', 100);
  t.is(await read(tier, block), 'exact');
  t.is(await read(tier, damaged), 'corrupt');
  await tier.put(other.record, other.payload); // behind what was sent before
  t.true(await server.client.ttl(keyOf(namespace, block)) > 900);
  t.true(await server.client.ttl(keyOf(namespace, damaged)) <= 100);
});

redisTest('a block that several ask for at once is sent once', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url });
  const block = blocksOf(namespace, 1)[0]!;
  await tier.put(block.record, block.payload);
  const calls = async (): Promise<number> => {
    const info = await server.client.info('commandstats');
    return Number(/cmdstat_getrange:calls=(\d+)/.exec(info)?.[1] ?? 0);
  };
  const before = await calls();
  t.deepEqual(new Set(await Promise.all(Array.from({ length: 10 }, () => read(tier, block)))), new Set(['exact']));
  t.is(await calls() - before, 1);
  t.is(tier.statistics()['sharedReads'], 9);
});

redisTest('blocks that wait to be written are bounded: the oldest are refused and counted', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const blocks = blocksOf(namespace, 10);
  const { bytes } = blocks[0]!.record;
  const tier = await openTier(t, namespace, { url: server.url, concurrentWrites: 1, queueBytes: 3 * bytes });
  const results = await Promise.all(blocks.map(({ record, payload }) => tier.put(record, payload)));
  t.deepEqual(results.map((result) => result.isStored || result.reason), [true, 'busy', 'busy', 'busy', 'busy', 'busy', 'busy', true, true, true]);
  const { putsDropped, queuedBytes, queuedBlocks } = tier.statistics();
  t.deepEqual({ putsDropped, queuedBytes, queuedBlocks }, { putsDropped: 6, queuedBytes: 0, queuedBlocks: 0 });
});

redisTest('a client of ioredis names the store as one of iovalkey does; its key prefix counts', async (t) => {
  const server = await RedisServer.start(t, '--requirepass', 'secret');
  const client = new Redis({ port: server.port, host: '127.0.0.1', password: 'secret', keyPrefix: 'mine:', lazyConnect: true });
  t.teardown(() => {
    client.disconnect();
  });
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { client, required: true });
  const block = blocksOf(namespace, 1)[0]!;
  t.deepEqual(await tier.put(block.record, block.payload), { isStored: true });
  t.is(await read(tier, block), 'exact');
  t.is(await tier.find([block.record.key]), 1);
  t.is(client.status, 'wait', 'the client itself is not used');
  t.deepEqual(await client.keys('*'), [`mine:${keyOf(namespace, block)}`]);
});

test('a store of several nodes is named without its password', (t) => {
  const { address, isCluster } = clusterAt(['rediss://user:secret@a.example:7000', '[::1]:7001', 'b.example'], { owner: 'redisTier', option: 'nodes' });
  t.deepEqual({ address, isCluster }, { address: 'a.example:7000, [::1]:7001, b.example:6379', isCluster: true });
});

test('a missing client package is named, and one that fails to load says why', (t) => {
  const missing = (): never => {
    throw Object.assign(new Error('not found'), { code: 'MODULE_NOT_FOUND' });
  };
  refuses(t, () => loadClientPackage(missing), 'KV_DEPENDENCY_MISSING', { dependency: 'iovalkey' });
  t.throws(() => loadClientPackage(() => { throw new Error('broken'); }), { message: 'broken' });
});
