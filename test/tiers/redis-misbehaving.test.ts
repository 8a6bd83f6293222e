// The Redis tier and a store that lies, is another one, or does not allow what the tier does: the process lives,
// every call ends in a value or in a typed error, nothing is written where it does not belong, and what is required
// is refused when the cache opens, by the store's own words.

import { Cluster as IoCluster, Redis as IoRedis } from 'ioredis';
import { Redis as IovalkeyRedis } from 'iovalkey';
import test, { type ExecutionContext } from 'ava';

import { isKvError, redisTier, type ErrorDetails, type RedisTierOptions, type Tier } from 'virtual-kv';

import type { MadeBlock } from '#internal/tiers/contract-store.js';
import { bulk, OddRedis } from '../helpers/odd-redis.js';
import { patient } from '../helpers/patient.js';
import { RedisServer } from '../helpers/redis-server.js';
import { redisTest } from '../helpers/redis-test.js';
import { blocksOf, breakerChange, contextOf, keyOf, namespaceOf, openTier, read, steppedTime } from './redis-world.js';

const deep = '*1\r\n'.repeat(100_000);
/** Its breakers stay closed, and so every call reaches the store. */
const undaunted = { failures: 1_000, coolDownMs: 1, maxCoolDownMs: 1 };

type Refusal = ErrorDetails['KV_TIER_REFUSED'];

function detailsOf(t: ExecutionContext, error: unknown, label: string): Refusal {
  t.true(isKvError(error, 'KV_TIER_REFUSED'), `${label}: ${String(error)}`);
  return (error as { details: Refusal }).details;
}

/** What the store's refusal says where it is required. */
async function refusalOf(t: ExecutionContext, options: RedisTierOptions): Promise<Refusal> {
  const tier = redisTier({ ...patient, ...options, required: true });
  const error = await tier.open(contextOf(namespaceOf(t))).then(() => 'it opened', (cause: unknown) => cause);
  await tier.close();
  return detailsOf(t, error, JSON.stringify(options.url));
}

/** An ioredis client at a place. */
function ioClient(t: ExecutionContext, url: string): IoRedis {
  const client = new IoRedis(url, { lazyConnect: true });
  t.teardown(() => client.disconnect());
  return client;
}

test('a store that answers by arrays nested 100,000 deep costs a miss, over either package, at any time', async (t) => {
  const odd = await OddRedis.start(t);
  const namespace = namespaceOf(t);
  const block = blocksOf(namespace, 1, 2)[0]!;
  for (const where of [{ url: odd.url }, { client: ioClient(t, odd.url) }]) {
    odd.answers = {};
    const tier = await openTier(t, namespace, { ...where, breaker: undaunted });
    odd.answers = { GETRANGE: deep };
    const got = await tier.get(block.record.key, new Uint8Array(block.record.bytes));
    t.false(got.isFound);
    const { reason, reply } = detailsOf(t, got.isFound || got.error, 'get');
    t.is(reason, 'protocol');
    t.regex(reply, /arrays nested more than 8 deep/);
    await tier.close();
    // Before it is ready: what a client asks for itself.
    odd.answers = { INFO: deep };
    t.regex((await refusalOf(t, where)).reply, /arrays nested more than 8 deep/);
  }
});

test('a cluster that tells its slots by arrays nested 100,000 deep is refused', async (t) => {
  const odd = await OddRedis.start(t);
  odd.answers = { CLUSTER: deep };
  const client = new IoCluster([odd.url], { lazyConnect: true });
  t.teardown(() => client.disconnect());
  for (const where of [{ nodes: [odd.url] }, { client }]) {
    const tier = await openTier(t, namespaceOf(t), where);
    t.is(tier.statistics()['breaker'], 'open');
    await tier.close();
  }
});

test('Sentinels that answer by arrays nested 100,000 deep are asked again', async (t) => {
  const odd = await OddRedis.start(t);
  const place = { sentinels: [{ host: '127.0.0.1', port: odd.port }], name: 'kv', lazyConnect: true };
  for (const client of [new IoRedis(place), new IovalkeyRedis(place)]) {
    t.teardown(() => client.disconnect());
    const askedAgain = new Promise<void>((resolve) => {
      let asked = 0;
      odd.answers = { SENTINEL: () => {
        asked += 1;
        if (asked === 2) resolve();
        return deep;
      } };
    });
    const { clock, advance } = steppedTime();
    const opening = openTier(t, namespaceOf(t), { client }, clock);
    await askedAgain;
    advance(patient.connectTimeoutMs);
    t.is((await opening).statistics()['breaker'], 'open');
  }
});

test('after an answer that its command cannot have the tier connects again, and goes on', async (t) => {
  const odd = await OddRedis.start(t);
  const tier = await openTier(t, namespaceOf(t), { url: odd.url, name: t.title, breaker: undaunted });
  const { connections } = odd;
  odd.answers = { GETRANGE: ':5\r\n' };
  const back = breakerChange(t.title, 'reads', 'half-open');
  t.false((await tier.get('1'.repeat(64), new Uint8Array(16))).isFound);
  odd.answers = {};
  await back;
  t.is(odd.connections, connections + 1);
  const got = await tier.get('1'.repeat(64), new Uint8Array(16));
  t.true(!got.isFound && got.reason === 'absent');
});

test('an announced length of 512 MiB ends the connection before anything of it is kept', async (t) => {
  const odd = await OddRedis.start(t);
  const tier = await openTier(t, namespaceOf(t), { url: odd.url, breaker: undaunted });
  odd.answers = { GETRANGE: '$536870912\r\nfirst' };
  const got = await tier.get('1'.repeat(64), new Uint8Array(16));
  t.false(got.isFound);
  t.regex(detailsOf(t, got.isFound || got.error, 'get').reply, /536,870,926 bytes/);
});

/** What no command that the tier sends may be answered by. */
const wrong: Readonly<Record<string, string>> = {
  integer: ':5\r\n', array: `*200\r\n${':1\r\n'.repeat(200)}`, words: '+QUEUED\r\n', string: bulk('five'),
  nothing: '*-1\r\n',
};

for (const [title, answer] of Object.entries(wrong)) {
  test(`every call ends in a value where all that the tier sends is answered by ${title}`, async (t) => {
    const odd = await OddRedis.start(t);
    const namespace = namespaceOf(t);
    const block = blocksOf(namespace, 1, 2)[0]!;
    const { key, bytes } = block.record;
    for (const command of ['GETRANGE', 'EXISTS', 'EXPIRE', 'SET', 'UNLINK']) {
      odd.answers = {};
      const tier = await openTier(t, namespace, { url: odd.url, breaker: undaunted });
      odd.answers = { [command]: answer };
      const got = await tier.get(key, new Uint8Array(bytes));
      const isRead = command === 'GETRANGE' || command === 'EXISTS';
      const put = isRead ? undefined : await tier.put(block.record, block.payload);
      const found = await tier.find([key]);
      await tier.remove([key]);
      t.false(got.isFound, command);
      const error = got.isFound ? undefined : got.error;
      if (command === 'GETRANGE' && /string|words/.test(title)) t.true(isKvError(error, 'KV_TIER_DAMAGED'));
      else if (isRead) t.is(detailsOf(t, error, command).reason, 'protocol');
      if (command === 'EXISTS') t.is(found, undefined);
      if (command === 'SET' || command === 'EXPIRE') {
        t.true(put?.isStored === false && put.reason === 'failed', command);
        const { reason, reply } = detailsOf(t, put?.isStored === false && put.error, command);
        t.is(reason, 'protocol');
        t.regex(reply, new RegExp(`the store answered ${command} by `));
      }
      if (command === 'UNLINK') t.true(Number(tier.statistics()['failures']) > 0);
      await tier.close();
    }
  });
}

redisTest('a value that is too long is read no further than a block, and is deleted; `keep` keeps it', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const block = blocksOf(namespace, 1, 2)[0]!;
  const key = keyOf(namespace, block);
  const sent = async (): Promise<number> => {
    const info = await server.client.info('stats');
    return Number(/total_net_output_bytes:(\d+)/.exec(info)![1]);
  };
  for (const damaged of ['keep', 'delete'] as const) {
    await server.client.setrange(key, 2 ** 24, 'x');
    const tier = await openTier(t, namespace, { url: server.url, damaged });
    const before = await sent();
    const got = await tier.get(block.record.key, new Uint8Array(block.record.bytes));
    t.true(!got.isFound && got.reason === 'corrupt' && isKvError(got.error, 'KV_TIER_DAMAGED'));
    t.true(await sent() - before < 2 ** 21);
    await tier.find([block.record.key]); // behind the deletion
    t.is(await server.client.exists(key), damaged === 'keep' ? 1 : 0);
  }
});

redisTest('an empty value is damage, and a key without a value is a miss', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const block = blocksOf(namespace, 1, 2)[0]!;
  const tier = await openTier(t, namespace, { url: server.url });
  await server.client.set(keyOf(namespace, block), '');
  t.is(await read(tier, block), 'corrupt');
  t.is(await read(tier, block), 'absent');
});

redisTest('a database that the store does not have is refused, and nothing is written to another', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const block = blocksOf(namespace, 1, 2)[0]!;
  for (const where of [{ url: `${server.url}/99` }, { client: ioClient(t, `${server.url}/99`) }]) {
    const { reason, reply } = await refusalOf(t, where);
    t.deepEqual({ reason, reply }, { reason: 'database', reply: 'ERR DB index is out of range' });
    const tier = await openTier(t, namespace, where);
    const put = await tier.put(block.record, block.payload);
    t.is(detailsOf(t, !put.isStored && put.error, 'put').reason, 'database');
    t.is(await read(tier, block), 'failed');
    t.regex(String(tier.statistics()['problem']), /DB index is out of range/);
    t.is(await server.client.dbsize(), 0);
    await tier.close();
  }
  const tier = await openTier(t, namespace, { url: `${server.url}/9`, required: true });
  t.true((await tier.put(block.record, block.payload)).isStored);
  t.is(await read(tier, block), 'exact');
  t.is(await server.client.dbsize(), 0);
  await server.client.select(9);
  t.is(await server.client.dbsize(), 1);
});

redisTest('a user whom the store does not know is refused, also where it is open to all', async (t) => {
  const server = await RedisServer.start(t);
  const url = `redis://someone:wrong@127.0.0.1:${server.port}`;
  for (const where of [{ url }, { client: ioClient(t, url) }]) {
    const { reason, reply } = await refusalOf(t, where);
    t.is(reason, 'credentials');
    t.regex(reply, /^WRONGPASS/);
    const tier = await openTier(t, namespaceOf(t), where);
    t.is(tier.statistics()['breaker'], 'open');
    t.regex(String(tier.statistics()['problem']), /WRONGPASS/);
    await tier.close();
  }
});

redisTest('a user who may not do what the tier does is refused by the store\'s words; one who may reads', async (t) => {
  const server = await RedisServer.start(t);
  const commands = ['getrange', 'set', 'exists', 'expire', 'unlink'];
  const url = `redis://tier:right@127.0.0.1:${server.port}`;
  const allow = async (...rules: readonly string[]): Promise<void> => {
    await server.client.acl('SETUSER', 'tier', 'reset', 'on', '>right', '~kvt:*', '+info', ...rules);
  };
  for (const missing of commands) {
    await allow(...commands.filter((command) => command !== missing).map((command) => `+${command}`));
    const { reason, reply } = await refusalOf(t, { url });
    t.is(reason, 'permission');
    t.regex(reply, new RegExp(`^NOPERM.*'${missing}'`));
  }
  await allow(...commands.map((command) => `+${command}`), 'resetkeys', '~other:*');
  t.regex((await refusalOf(t, { url })).reply, /^NOPERM.*keys/);

  await allow(...commands.map((command) => `+${command}`));
  const namespace = namespaceOf(t);
  const [block, other] = blocksOf(namespace, 2, 2) as [MadeBlock, MadeBlock];
  const writer = await openTier(t, namespace, { url, required: true });
  t.true((await writer.put(block.record, block.payload)).isStored);
  await writer.close();
  await allow('+getrange', '+exists');
  const reader: Tier = await openTier(t, namespace, { url });
  t.is(await read(reader, block), 'exact');
  t.is(await reader.find!([block.record.key]), 1);
  const put = await reader.put(other.record, other.payload);
  t.is(detailsOf(t, !put.isStored && put.error, 'put').reason, 'permission');
  const { lookups, reads, writes } = reader.statistics();
  t.deepEqual({ lookups, reads, writes }, { lookups: 'closed', reads: 'closed', writes: 'open' });
});

redisTest('a store that is full opens where it is required; a replica, which takes no writes, does not', async (t) => {
  const server = await RedisServer.start(t, '--maxmemory', '1', '--maxmemory-policy', 'noeviction');
  const namespace = namespaceOf(t);
  const block = blocksOf(namespace, 1, 2)[0]!;
  const tier = await openTier(t, namespace, { url: server.url, required: true });
  const put = await tier.put(block.record, block.payload);
  t.true(!put.isStored && put.reason === 'full');
  t.is(await read(tier, block), 'absent');
  await tier.close();
  const replica = await RedisServer.start(t, '--replicaof', '127.0.0.1', `${server.port}`);
  t.regex((await refusalOf(t, { url: replica.url })).reply, /^READONLY/);
});
