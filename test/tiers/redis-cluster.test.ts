// The Redis tier over a cluster of three masters: blocks lie in all of them, a slot that moves under load costs nothing, and a master that is
// gone costs its own blocks.
// Slow: it starts a cluster.

import { Cluster, type Redis } from 'iovalkey';

import { isKvError, redisTier } from 'virtual-kv';

import { patient } from '../helpers/patient.js';
import { startCluster, type RedisServer } from '../helpers/redis-server.js';
import { redisTest } from '../helpers/redis-test.js';
import { blocksOf, contextOf, keyOf, namespaceOf, openTier, read } from './redis-world.js';

redisTest('blocks are spread over a cluster, and found and read from all its nodes', async (t) => {
  const nodes = await startCluster(t);
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { nodes: [nodes[0]!.url] });
  const blocks = blocksOf(namespace, 48);
  await Promise.all(blocks.map(async ({ record, payload }) => t.deepEqual(await tier.put(record, payload), { isStored: true })));
  const sizes = await Promise.all(nodes.map(({ client }) => client.dbsize()));
  t.is(sizes.reduce((sum, size) => sum + size, 0), blocks.length);
  t.true(sizes.every((size) => size > 0), String(sizes));
  t.is(await tier.find(blocks.map(({ record }) => record.key)), blocks.length);
  for (const block of blocks) t.is(await read(tier, block), 'exact');
  await tier.remove([blocks[7]!.record.key]);
  t.is(await tier.find(blocks.map(({ record }) => record.key)), 7);

  const single = redisTier({ url: nodes[0]!.url, required: true, connectTimeoutMs: 10_000 });
  const error = await t.throwsAsync(() => single.open(contextOf(namespace)));
  t.true(isKvError(error, 'KV_TIER_REFUSED') && error.details.reason === 'is-cluster');

  const stranger = redisTier({ ...patient, nodes: [nodes[0]!.url.replace('//', '//someone:wrong@')], required: true });
  const refusal = await t.throwsAsync(() => stranger.open(contextOf(namespace)));
  t.true(isKvError(refusal, 'KV_TIER_REFUSED') && refusal.details.reason === 'credentials');
  const forbidden = redisTier({ ...patient, nodes: [nodes[0]!.url], required: true });
  for (const { client } of nodes) await client.acl('SETUSER', 'default', '-set');
  const refused = await t.throwsAsync(() => forbidden.open(contextOf(namespace)));
  t.true(isKvError(refused, 'KV_TIER_REFUSED') && refused.details.reason === 'permission');
});

redisTest('a slot that moves to another node under load is read and written throughout', async (t) => {
  const nodes = await startCluster(t);
  const namespace = namespaceOf(t);
  const client = new Cluster([{ host: '127.0.0.1', port: nodes[1]!.port }], { lazyConnect: true }).on('error', () => {});
  t.teardown(() => {
    client.disconnect();
  });
  const tier = await openTier(t, namespace, { client });
  const blocks = blocksOf(namespace, 12);
  for (const { record, payload } of blocks) await tier.put(record, payload);
  const moved = blocks[0]!;
  const key = keyOf(namespace, moved);
  const slot = await nodes[0]!.client.cluster('KEYSLOT', key) as number;
  const from = nodes.findIndex((_, index) => slot < [5_461, 10_923, 16_384][index]!);
  const [source, target] = [nodes[from]!, nodes[(from + 1) % 3]!];
  const [sourceId, targetId] = await Promise.all([source, target].map(({ client: node }) => node.cluster('MYID') as Promise<string>));

  let isMoving = true;
  const results: string[] = [];
  const load = Promise.all([0, 1, 2, 3].map(async (worker) => {
    while (isMoving || results.length < 200) {
      const block = blocks[(results.length + worker) % blocks.length]!;
      results.push(await read(tier, block), await read(tier, moved));
      t.is(await tier.find([moved.record.key, block.record.key]), 2);
      t.true((await tier.put(moved.record, moved.payload)).isStored);
    }
  }));
  await target.client.cluster('SETSLOT', slot, 'IMPORTING', sourceId!);
  await source.client.cluster('SETSLOT', slot, 'MIGRATING', targetId!);
  await read(tier, moved); // from the old node
  await (source.client as Redis).migrate('127.0.0.1', target.port, key, 0, 10_000);
  t.is(await read(tier, moved), 'exact'); // by way of ASK
  for (const node of [target, source, ...nodes]) await node.client.cluster('SETSLOT', slot, 'NODE', targetId!);
  t.is(await read(tier, moved), 'exact'); // by way of MOVED
  isMoving = false;
  await load;
  t.true(results.every((result) => result === 'exact'), [...new Set(results)].join());
  const { breakerOpens, failures } = tier.statistics();
  t.deepEqual({ breakerOpens, failures }, { breakerOpens: 0, failures: 0 });
  t.not(client.status, 'ready', 'the application\'s own client is left alone');
});

redisTest('a master that is killed costs its own blocks; those of the others are read', async (t) => {
  const nodes = await startCluster(t);
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { nodes: nodes.map(({ url }) => url), breaker: { failures: 1_000 } });
  const blocks = blocksOf(namespace, 30);
  for (const { record, payload } of blocks) await tier.put(record, payload);
  const isOn = async (server: RedisServer): Promise<boolean[]> => Promise.all(blocks.map(async (block) => (await server.client.exists(keyOf(namespace, block)).catch(() => 0)) === 1));
  const lost = await isOn(nodes[2]!);
  t.true(lost.includes(true) && lost.includes(false));
  await nodes[2]!.kill();
  for (let round = 0; round < 3; round += 1) {
    const results = await Promise.all(blocks.map((block) => read(tier, block)));
    t.true(results.every((result, index) => (lost[index] ? result === 'failed' : result === 'exact')), results.join());
  }
  const first = blocks[lost.indexOf(true)]!;
  t.is((await tier.put(first.record, first.payload)).isStored, false);
});
