// The Redis tier and a store that fails: killed, stopped, full, damaged, refusing. What is promised: exact bytes or a miss, no promise
// rejects, nothing waits longer than its limit, and the store is used again when it is back.

import { createServer, type AddressInfo } from 'node:net';
import { once } from 'node:events';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { isKvError, type Tier } from 'virtual-kv';

import { digestOf } from '#internal/tiers/contract-store.js';
import { RedisServer } from '../helpers/redis-server.js';
import { redisTest } from '../helpers/redis-test.js';
import { processClock } from '#internal/tiers/load-clock.js';
import { timedRedisTier } from '#internal/tiers/redis-tier.js';
import { slow } from '../runner/slow.js';
import { blocksOf, breakerChange, contextOf, keyOf, namespaceOf, openTier, read, steppedTime } from './redis-world.js';

const quick = { failures: 3, coolDownMs: 5, maxCoolDownMs: 20 };

redisTest('a store that is killed in the middle of reads and writes gives exact blocks and misses, and is used again when it is back', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url, name: t.title, breaker: quick });
  const blocks = blocksOf(namespace, 24, 1_024);
  for (const { record, payload } of blocks.slice(0, 12)) t.deepEqual(await tier.put(record, payload), { isStored: true });
  const opened = breakerChange(t.title, 'reads', 'open');
  const puts = blocks.slice(12).map(({ record, payload }) => tier.put(record, payload));
  const gets = Array.from({ length: 60 }, (_, index) => read(tier, blocks[index % 12]!));
  await gets[3]; // some have come, more are on their way
  await server.kill();
  const results = await Promise.all(gets);
  t.true(results.includes('exact'));
  t.true(results.every((result) => result === 'exact' || result === 'failed' || result === 'absent'), String(results));
  for (const put of await Promise.all(puts)) t.true(put.isStored || put.reason === 'failed');
  await opened;
  t.is(tier.statistics()['reads'], 'open');
  t.is(await tier.find([blocks[0]!.record.key]), undefined);
  const refused = await tier.get(blocks[0]!.record.key, new Uint8Array(blocks[0]!.record.bytes));
  t.true(!refused.isFound && refused.reason === 'failed' && isKvError(refused.error, 'KV_TIER_UNREACHABLE'));
  t.regex(String(tier.statistics()['problem']), /cannot reach its store at 127\.0\.0\.1/);

  const back = ['lookups', 'reads', 'writes'].map((lane) => breakerChange(t.title, lane, 'half-open'));
  await server.restart();
  await Promise.all(back);
  t.is(await read(tier, blocks[0]!), 'absent', 'it kept nothing on disk');
  t.deepEqual(await tier.put(blocks[0]!.record, blocks[0]!.payload), { isStored: true });
  t.is(await tier.find([blocks[0]!.record.key]), 1);
  t.is(await read(tier, blocks[0]!), 'exact');
  const { breaker, problem, breakerOpens } = tier.statistics();
  t.deepEqual({ breaker, problem }, { breaker: 'closed', problem: '' });
  t.true(Number(breakerOpens) >= 3);
});

redisTest('a master that becomes a replica refuses many writes at once without a warning, and takes them when it is one again', async (t) => {
  const server = await RedisServer.start(t);
  const warnings: string[] = [];
  const hear = ({ message }: Error): void => { warnings.push(message); };
  process.on('warning', hear);
  t.teardown(() => process.off('warning', hear));
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url, name: t.title, breaker: { ...quick, failures: 64 }, concurrentWrites: 32 });
  const blocks = blocksOf(namespace, 32, 2);
  await server.client.call('REPLICAOF', '127.0.0.1', '1');
  const ends = await Promise.all(blocks.map(({ record, payload }) => tier.put(record, payload)));
  t.deepEqual([...new Set(ends.map((end) => !end.isStored && end.reason))], ['failed']);
  await server.client.call('REPLICAOF', 'NO', 'ONE');
  const { record, payload } = blocks[0]!;
  for (let isStored = false; !isStored; await nextTurn()) ({ isStored } = await tier.put(record, payload)); // it connects again
  t.is(await read(tier, blocks[0]!), 'exact');
  t.deepEqual(warnings, []);
});

redisTest('a store that stands still costs the time limits, then nothing; what it answers too late is not used', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const limits = { findTimeoutMs: 20, getTimeoutMs: 40, putTimeoutMs: 40 };
  const { clock, advance } = steppedTime();
  const tier = await openTier(t, namespace, { url: server.url, name: t.title, breaker: quick }, clock);
  const [block, other] = blocksOf(namespace, 2) as [ReturnType<typeof blocksOf>[number], ReturnType<typeof blocksOf>[number]];
  await tier.put(block.record, block.payload);
  const name = `${t.title}, slow`;
  const slow = await openTier(t, namespace, { url: server.url, name, breaker: quick, ...limits }, clock);
  const opened = ['lookups', 'reads', 'writes'].map((lane) => breakerChange(`${t.title}, slow`, lane, 'open'));
  server.signal('SIGSTOP');
  const target = new Uint8Array(block.record.bytes).fill(7);
  const finds = [1, 2, 3].map(() => slow.find([block.record.key])); // before reads fail: then it asks nothing
  advance(limits.findTimeoutMs);
  t.deepEqual(await Promise.all(finds), [undefined, undefined, undefined]);
  const reads = [1, 2, 3].map((tokens) => slow.get(digestOf(`${tokens}`), target));
  const writes = blocksOf(namespaceOf(t), 3).map(({ record, payload }) => slow.put(record, payload));
  advance(limits.getTimeoutMs);
  const gets = await Promise.all(reads);
  t.deepEqual(gets.map((get) => !get.isFound && get.reason), ['timeout', 'timeout', 'timeout']);
  const puts = await Promise.all(writes);
  t.true(puts.every((put) => !put.isStored && put.reason === 'failed' && isKvError(put.error, 'KV_TIMEOUT')));
  await Promise.all(opened);
  for (let call = 0; call < 1_000; call += 1) { // each would wait for ever: no time passes
    t.is(await read(slow, block), 'failed');
    t.is((await slow.put(other.record, other.payload)).isStored, false);
  }
  t.true(Number(slow.statistics()['breakerRefusals']) >= 2_000);

  const controller = new AbortController();
  const cancelled = tier.get(block.record.key, target, controller.signal);
  controller.abort(new Error('mine'));
  const result = await cancelled;
  t.true(!result.isFound && result.reason === 'timeout' && isKvError(result.error, 'KV_ABORTED'));
  const half = breakerChange(`${t.title}, slow`, 'reads', 'half-open');
  server.signal('SIGCONT');
  await half;
  t.is(await read(tier, block), 'exact');
  t.true(target.every((byte) => byte === 7), 'nothing was written into memory that its caller has again');
});

redisTest('requests whose callers gave up count as failures of a store that does not answer', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const { clock, advance } = steppedTime();
  const options = { url: server.url, name: t.title, breaker: quick, getTimeoutMs: 30 };
  const tier = await openTier(t, namespace, options, clock);
  server.signal('SIGSTOP');
  const opened = breakerChange(t.title, 'reads', 'open');
  const controller = new AbortController();
  const gets = [1, 2, 3].map((seed) => tier.get(digestOf(`${seed}`), new Uint8Array(16), controller.signal));
  controller.abort();
  t.true((await Promise.all(gets)).every(({ isFound }) => !isFound));
  advance(30);
  await opened;
  t.is(tier.statistics()['reads'], 'open');
  server.signal('SIGCONT');
});

redisTest('values that were truncated, flipped or replaced are misses, are counted, and are stored anew', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url });
  const [block, other] = blocksOf(namespace, 2, 3) as [ReturnType<typeof blocksOf>[number], ReturnType<typeof blocksOf>[number]];
  await tier.put(block.record, block.payload);
  await tier.put(other.record, other.payload);
  const key = keyOf(namespace, block);
  const value = (await server.client.getBuffer(key))!;
  const foreign = (await server.client.getBuffer(keyOf(namespace, other)))!;
  const headerBytes = value.readUInt32LE(8);
  t.is(value.length, headerBytes + block.record.bytes);

  const results = new Map<string, number>();
  const tried = async (changed: Buffer): Promise<void> => {
    await server.client.set(key, changed);
    const result = await read(tier, block);
    results.set(result, (results.get(result) ?? 0) + 1);
    if (result === 'damaged') await tier.remove([block.record.key]); // as a cache does
  };
  for (let bit = 0; bit < 8 * headerBytes; bit += 1) {
    const flipped = Buffer.from(value);
    flipped[bit >> 3]! ^= 1 << (bit & 7);
    await tried(flipped);
  }
  t.deepEqual([...results], [['corrupt', 8 * headerBytes]], 'no bit of a header is without a check');
  for (let bit = 8 * headerBytes; bit < 8 * value.length; bit += 641) {
    const flipped = Buffer.from(value);
    flipped[bit >> 3]! ^= 1 << (bit & 7);
    await tried(flipped);
  }
  t.deepEqual([...results.keys()], ['corrupt', 'damaged'], 'and none of a payload without a sum');
  results.clear();
  for (let length = 0; length < value.length; length += length < headerBytes + 8 ? 1 : 97) await tried(value.subarray(0, length));
  await tried(Buffer.concat([value, Buffer.alloc(1)]));
  await tried(foreign);
  await server.client.set(key, '');
  await server.client.del(key);
  await server.client.lpush(key, 'a list');
  t.is(await read(tier, block), 'corrupt');
  t.deepEqual([...results.keys()], ['corrupt']);
  t.is(tier.statistics()['breaker'], 'closed', 'damage is no failure of the store');

  t.deepEqual(await tier.put(block.record, block.payload), { isStored: true });
  t.is(await read(tier, block), 'exact');
  const failed = await tier.get(block.record.key, new Uint8Array(block.record.bytes - 1));
  t.true(!failed.isFound && failed.reason === 'corrupt' && isKvError(failed.error, 'KV_TIER_DAMAGED'));
}, slow('stores anew what each kind of damage hit'));

redisTest('a value of a later version is left alone, and so is a damaged one with `damaged: \'keep\'`', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const [deleting, keeping] = await Promise.all((['delete', 'keep'] as const).map((damaged) => openTier(t, namespace, { url: server.url, damaged })));
  const [block] = blocksOf(namespace, 1) as [ReturnType<typeof blocksOf>[number]];
  const key = keyOf(namespace, block);
  await deleting!.put(block.record, block.payload);
  const value = (await server.client.getBuffer(key))!;
  const newer = Buffer.from(value);
  newer.writeUInt32LE(2, 4);
  await server.client.set(key, newer);
  t.is(await read(deleting!, block), 'corrupt');
  await server.client.set(key, value.subarray(1));
  t.is(await read(keeping!, block), 'corrupt');
  t.deepEqual(await server.client.getBuffer(key), Buffer.from(value.subarray(1)));
  t.deepEqual(await keeping!.put(block.record, block.payload), { isStored: true });
  t.is(await read(keeping!, block), 'exact');
  await server.client.set(key, newer);
  t.is(await read(deleting!, block), 'corrupt');
  t.deepEqual(await server.client.getBuffer(key), newer);
});

redisTest('a store that evicts at `maxmemory` has exact blocks and misses, never holes that find counts', async (t) => {
  const server = await RedisServer.start(t, '--maxmemory', '12mb', '--maxmemory-policy', 'allkeys-lru');
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url });
  const blocks = blocksOf(namespace, 40, 256); // 15 MiB
  for (const { record, payload } of blocks) t.deepEqual(await tier.put(record, payload), { isStored: true });
  const present = await Promise.all(blocks.map((block) => server.client.exists(keyOf(namespace, block))));
  t.true(present.includes(0) && present.includes(1));
  t.true((await tier.find(blocks.map(({ record }) => record.key)))! <= present.indexOf(0));
  const results = await Promise.all(blocks.map((block) => read(tier, block)));
  // Reading takes memory too, for which it evicts more.
  t.true(results.every((result, index) => result === 'absent' || (result === 'exact' && present[index] === 1)), String(results));
  t.true(results.includes('exact'));
});

redisTest('a store that is full and may not evict is read, refuses what is put by `full`, and takes blocks again when there is room', async (t) => {
  const server = await RedisServer.start(t, '--maxmemory', '8mb', '--maxmemory-policy', 'noeviction');
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url, name: t.title, breaker: quick });
  const blocks = blocksOf(namespace, 40, 256);
  const opened = breakerChange(t.title, 'writes', 'open');
  const results = [];
  for (const { record, payload } of blocks) results.push(await tier.put(record, payload));
  await opened;
  const refused = results.findIndex(({ isStored }) => !isStored);
  t.true(refused > 0);
  const refusal = results[refused]!;
  t.true(!refusal.isStored && refusal.reason === 'full' && isKvError(refusal.error, 'KV_TIER_REFUSED') && refusal.error.details.reason === 'full');
  t.is(await tier.find(blocks.map(({ record }) => record.key)), refused);
  t.is(await read(tier, blocks[0]!), 'exact');
  t.is(tier.statistics()['reads'], 'closed');

  await server.client.flushall();
  let result: Awaited<ReturnType<Tier['put']>>;
  do {
    await breakerOrReply(server);
    result = await tier.put(blocks[0]!.record, blocks[0]!.payload);
  } while (!result.isStored);
  t.is(await read(tier, blocks[0]!), 'exact');
  t.is(tier.statistics()['writes'], 'closed');
});

/** One round trip to the store: the tier's timers have their turn meanwhile. */
async function breakerOrReply(server: RedisServer): Promise<void> {
  await server.client.ping();
}

redisTest('a wrong password, a wrong address and what is no Redis are misses, or a typed error where the store is required', async (t) => {
  const server = await RedisServer.start(t, '--requirepass', 'right');
  const web = createServer((socket) => socket.on('error', () => {}).end('HTTP/1.1 400 Bad Request\r\n\r\n')).listen(0, '127.0.0.1');
  const silent = createServer((socket) => socket.on('error', () => {})).listen(0, '127.0.0.1');
  await Promise.all([once(web, 'listening'), once(silent, 'listening')]);
  t.teardown(() => {
    web.close();
    silent.close();
  });
  const port = (of: typeof web): number => (of.address() as AddressInfo).port;
  const gone = createServer().listen(0, '127.0.0.1');
  await once(gone, 'listening');
  const gonePort = port(gone);
  gone.close();
  await once(gone, 'close');
  const address = `127.0.0.1:${server.port}`;
  const cases = [
    { url: `redis://:wrong@${address}`, code: 'KV_TIER_REFUSED', reason: 'credentials' },
    { url: `redis://someone:wrong@${address}`, code: 'KV_TIER_REFUSED', reason: 'credentials' },
    { url: `redis://${address}`, code: 'KV_TIER_REFUSED', reason: 'credentials' },
    { url: `redis://127.0.0.1:${port(web)}`, code: 'KV_TIER_REFUSED', reason: 'protocol' },
    { url: `redis://127.0.0.1:${port(silent)}`, code: 'KV_TIER_UNREACHABLE', reason: undefined },
    { url: `redis://127.0.0.1:${gonePort}`, code: 'KV_TIER_UNREACHABLE', reason: undefined },
    { nodes: [`redis://:right@${address}`], code: 'KV_TIER_REFUSED', reason: 'no-cluster' },
    { nodes: [`redis://127.0.0.1:${gonePort}`], code: 'KV_TIER_UNREACHABLE', reason: undefined },
  ];
  const namespace = namespaceOf(t);
  const [block] = blocksOf(namespace, 1) as [ReturnType<typeof blocksOf>[number]];
  await Promise.all(cases.map(async ({ code, reason, ...where }) => {
    const label = JSON.stringify(where);
    const isSilent = where.url?.includes(`:${port(silent)}`) === true;
    const connectTimeoutMs = 60_000;
    const { clock, advance } = steppedTime();
    const required = timedRedisTier({ ...where, connectTimeoutMs, required: true }, isSilent ? clock : processClock);
    const opening = required.open(contextOf(namespace));
    advance(connectTimeoutMs);
    const error = await t.throwsAsync(opening, undefined, label) as Error & { details?: { reason?: string } };
    t.true(isKvError(error, code as 'KV_TIER_REFUSED'), `${label}: ${error.message}`);
    t.is(error.details?.reason, reason, label);
    t.false(/right|wrong@|:wrong/.test(error.message), error.message);
    await required.close();

    const limits = { connectTimeoutMs, breaker: quick };
    const openingTier = openTier(t, namespace, { ...where, ...limits }, isSilent ? clock : processClock);
    advance(connectTimeoutMs);
    const tier = await openingTier;
    t.is(tier.statistics()['breaker'] === 'closed', false, label);
    t.is(await read(tier, block), 'failed', label);
    t.is((await tier.put(block.record, block.payload)).isStored, false, label);
    t.is(await tier.find([block.record.key]), undefined, label);
    await tier.remove([block.record.key]);
    await tier.close();
  }));
});

redisTest('a tier that starts without its store uses it once it is there', async (t) => {
  const server = await RedisServer.start(t);
  await server.kill();
  const namespace = namespaceOf(t);
  const tier = await openTier(t, namespace, { url: server.url, name: t.title, breaker: quick });
  const [block] = blocksOf(namespace, 1) as [ReturnType<typeof blocksOf>[number]];
  t.is(await read(tier, block), 'failed');
  const back = ['lookups', 'reads', 'writes'].map((lane) => breakerChange(t.title, lane, 'half-open'));
  await server.restart();
  await Promise.all(back);
  t.deepEqual(await tier.put(block.record, block.payload), { isStored: true });
  t.is(await read(tier, block), 'exact');
});

redisTest('nothing is left of a tier that was closed, whatever it was doing', async (t) => {
  const server = await RedisServer.start(t);
  const namespace = namespaceOf(t);
  const blocks = blocksOf(namespace, 8, 512);
  const tier = await openTier(t, namespace, { url: server.url });
  await t.throwsAsync(() => tier.open(contextOf(namespace)), { code: 'KV_INVALID_OPTION' });
  const running = blocks.flatMap((block) => [tier.put(block.record, block.payload), read(tier, block), tier.find([block.record.key])]);
  await tier.close();
  await Promise.all(running);
  const connections = async (): Promise<number> => ((await server.client.client('LIST')) as string).match(/name=virtual-kv/g)?.length ?? 0;
  while (await connections() > 0) await server.client.ping();
  await t.throwsAsync(() => tier.open(contextOf(namespace)), { code: 'KV_CLOSED' });
});
