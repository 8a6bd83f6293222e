// The parts of the Redis tier that need no store: its circuit breaker on a clock of the test's own, its queue and its value format.

import { crc32 } from 'node:zlib';

import test from 'ava';

import type { TierPut } from 'virtual-kv';

import { crc32c, makeBlock } from '#internal/tiers/contract-store.js';
import { CircuitBreaker, type BreakerState } from '#internal/tiers/redis/redis-lane.js';
import { PutQueue } from '#internal/tiers/redis/put-queue.js';
import { decodeValue, encodeValue } from '#internal/tiers/redis/redis-value.js';

const namespace = 'ab'.repeat(32);

/** A breaker whose timers and probes the test fires by hand. */
function breakerBench(): {
  readonly breaker: CircuitBreaker;
  readonly states: BreakerState[];
  readonly waits: number[];
  fire(isAnswered: boolean): Promise<void>;
} {
  const states: BreakerState[] = [];
  const waits: number[] = [];
  let call: (() => void) | undefined;
  let answers = false;
  const breaker = new CircuitBreaker({
    failures: 3, coolDownMs: 100, maxCoolDownMs: 350,
    probe: () => (answers ? Promise.resolve() : Promise.reject(new Error('away'))),
    changed: (_from, to) => {
      states.push(to);
    },
    clock: {
      now: () => 0,
      after: (later, ms) => {
        waits.push(ms);
        call = later;
        return () => {
          call = undefined;
        };
      },
    },
  });
  const fire = async (isAnswered: boolean): Promise<void> => {
    answers = isAnswered;
    call!();
    await new Promise(setImmediate);
  };
  return { breaker, states, waits, fire };
}

function fail(breaker: CircuitBreaker, times: number): void {
  for (let time = 0; time < times; time += 1) breaker.failed(breaker.enter()!, new Error('failure'));
}

test('a breaker opens after failures in a row, and a success between them counts from the start', (t) => {
  const { breaker, states } = breakerBench();
  fail(breaker, 2);
  breaker.succeeded(breaker.enter()!);
  fail(breaker, 2);
  t.is(breaker.state, 'closed');
  fail(breaker, 1);
  t.deepEqual([states, breaker.opens, breaker.wouldPass, breaker.enter(), breaker.refusals], [['open'], 1, false, undefined, 1]);
  t.is((breaker.lastError as Error).message, 'failure');
});

test('an open breaker probes after its cool-down, which doubles up to its limit', async (t) => {
  const { breaker, waits, states, fire } = breakerBench();
  fail(breaker, 3);
  for (let time = 0; time < 3; time += 1) await fire(false);
  t.deepEqual(waits, [100, 200, 350, 350]);
  await fire(true);
  t.deepEqual(states, ['open', 'half-open']);
});

test('a half-open breaker lets one request pass at a time; the first that ends decides', async (t) => {
  const { breaker, waits, fire } = breakerBench();
  fail(breaker, 3);
  await fire(true);
  const trial = breaker.enter()!;
  t.is(breaker.enter(), undefined);
  breaker.failed(trial, new Error('still'));
  t.deepEqual([breaker.state, waits], ['open', [100, 200]]);
  await fire(true);
  breaker.succeeded(breaker.enter()!);
  t.is(breaker.state, 'closed');
  fail(breaker, 3);
  t.is(waits.at(-1), 100, 'the cool-down begins anew');
});

test('what a request says that passed before the state changed counts for nothing', async (t) => {
  const { breaker, fire } = breakerBench();
  const [late, later] = [breaker.enter()!, breaker.enter()!];
  fail(breaker, 3);
  breaker.succeeded(late);
  t.is(breaker.state, 'open');
  await fire(true);
  breaker.failed(later, new Error('old'));
  breaker.succeeded(late);
  t.is(breaker.state, 'half-open');
});

test('a breaker that is told that the store is back probes at once, also while a probe fails; closed, it does nothing', async (t) => {
  const { breaker, states, waits, fire } = breakerBench();
  breaker.open(new Error('lost'));
  const failing = fire(false);
  breaker.probeNow(); // the first is under way
  await failing;
  t.deepEqual(waits.length, 2, 'that one failed as well');
  await fire(true);
  t.deepEqual(states, ['open', 'half-open']);
  breaker.close();
  breaker.open(new Error('lost'));
  breaker.probeNow();
  t.is(breaker.state, 'half-open');
});

/** A queue whose writes the test ends by hand. */
function queueBench(maxBytes: number, maxWriting: number): { readonly queue: PutQueue; readonly started: string[]; put(key: string, bytes?: number, place?: { level?: number; position?: number }): Promise<TierPut>; end(key: string): void } {
  const queue = new PutQueue({ maxBytes, maxWriting });
  const started: string[] = [];
  const ends = new Map<string, (result: TierPut) => void>();
  return {
    queue, started,
    put: (key, bytes = 10, { level = 0, position = 0 } = {}) => queue.put({ key, bytes, level, position }, () => new Promise((resolve) => {
      started.push(key);
      ends.set(key, resolve);
    })),
    end: (key) => ends.get(key)!({ isStored: true }),
  };
}

test('a queue writes a few blocks at a time in the order of arrival, and each block once', async (t) => {
  const { queue, started, put, end } = queueBench(100, 2);
  const puts = ['a', 'b', 'c', 'c', 'a'].map((key) => put(key));
  t.deepEqual([started, queue.length, queue.waitingBytes], [['a', 'b'], 1, 10]);
  t.is(puts[2], puts[3]);
  t.is(puts[0], puts[4]);
  end('b');
  await puts[1];
  t.deepEqual([started, queue.length, queue.waitingBytes], [['a', 'b', 'c'], 0, 0]);
});

test('a queue refuses the lowest level first, of it ends of texts, of these the oldest', async (t) => {
  const { queue, put } = queueBench(30, 1);
  void put('being written');
  const waiting = new Map([
    ['start', put('start', 10, { level: 1, position: 0 })], ['end', put('end', 10, { level: 1, position: 64 })], ['valued', put('valued', 10, { level: 2, position: 128 })],
  ]);
  const refusedBy = async (key: string, place: { level?: number; position?: number }): Promise<string> => {
    const { dropped } = queue;
    waiting.set(key, put(key, 10, place));
    t.is(queue.dropped, dropped + 1);
    const gone = await Promise.race([...waiting].map(async ([name, result]) => (await result, name)));
    waiting.delete(gone);
    return gone;
  };
  t.is(await refusedBy('low', { level: 0 }), 'low');
  t.is(await refusedBy('second', { level: 1, position: 32 }), 'end');
  t.is(await refusedBy('third', { level: 1, position: 0 }), 'second');
  t.is(await refusedBy('fourth', { level: 1, position: 0 }), 'start', 'the oldest of two beginnings');
  t.deepEqual([...waiting.keys()], ['valued', 'third', 'fourth']);
  t.is(queue.waitingBytes, 30);
});

test('a queue refuses the oldest that wait, and what is too large to wait', async (t) => {
  const { queue, started, put } = queueBench(25, 1);
  const [, second, , , huge] = ['a', 'b', 'c', 'd', 'huge'].map((key) => put(key, key === 'huge' ? 30 : 10));
  t.deepEqual([await second, await huge], [{ isStored: false, reason: 'busy' }, { isStored: false, reason: 'busy' }]);
  t.deepEqual([started, queue.dropped, queue.waitingBytes], [['a'], 2, 20]);
});

test('a block is withdrawn while it waits, and awaited while it is written', async (t) => {
  const { queue, put, end } = queueBench(100, 1);
  const [first, second] = [put('a'), put('b')];
  t.is(queue.withdraw('b'), undefined);
  t.false((await second).isStored);
  t.is(queue.withdraw('a'), first);
  t.is(queue.withdraw('c'), undefined);
  const third = put('c');
  queue.refuseAll({ isStored: false, reason: 'failed' });
  t.deepEqual(await third, { isStored: false, reason: 'failed' });
  end('a');
  t.deepEqual([await first, queue.length, queue.waitingBytes], [{ isStored: true }, 0, 0]);
});

const block = makeBlock({ namespace, stripeTokenBytes: [3, 5] }, { seed: 1, tokens: 7, notes: Uint8Array.of(1, 2, 3) });

/** The value with other sections behind its own, as a later version of this package may write it. */
function withSection(type: number, data: readonly number[]): Buffer {
  const value = encodeValue(namespace, block.record, block.payload);
  const headerBytes = value.readUInt32LE(8);
  const more = Buffer.alloc(8 + Math.ceil(data.length / 4) * 4);
  more.writeUInt32LE(type, 0);
  more.writeUInt32LE(data.length, 4);
  more.set(data, 8);
  const header = Buffer.concat([value.subarray(0, headerBytes), more]);
  header.writeUInt32LE(header.length, 8);
  header.writeUInt32LE(header.readUInt32LE(28) + 1, 28);
  header.writeUInt32LE(0, 12);
  header.writeUInt32LE(crc32(header), 12);
  return Buffer.concat([header, block.payload]);
}

test('a value says what its block is, but nothing of its level, and a reader skips sections that it does not know', (t) => {
  const { level, ...described } = block.record;
  t.is(level, 0);
  t.deepEqual(encodeValue(namespace, { ...block.record, level: 9 }, block.payload), encodeValue(namespace, block.record, block.payload));
  for (const value of [encodeValue(namespace, block.record, block.payload), withSection(77, [1, 2, 3, 4, 5])]) {
    const decoded = decodeValue(value, namespace, block.record.key, block.record.bytes);
    t.true('record' in decoded);
    if ('record' in decoded) t.deepEqual({ ...decoded.record, payload: Uint8Array.from(decoded.payload) }, { ...described, payload: block.payload });
  }
  const refused = decodeValue(withSection(0x8000_0001, [1]), namespace, block.record.key, block.record.bytes);
  t.true('problem' in refused && refused.isNewer);
  const other = decodeValue(encodeValue('cd'.repeat(32), block.record, block.payload), namespace, block.record.key, block.record.bytes);
  t.true('problem' in other && !other.isNewer && /another namespace/.test(other.problem));
});

test('a record that is named by no SHA-256 makes no value', (t) => {
  t.throws(() => encodeValue(namespace, { ...block.record, key: 'short' }, block.payload), { code: 'KV_INTERNAL' });
  t.throws(() => encodeValue(namespace, { ...block.record, parent: 'zz'.repeat(32) }, block.payload), { code: 'KV_INTERNAL' });
});

test('CRC-32C of the contract suite is the one of RFC 3720', (t) => {
  t.is(crc32c(Buffer.from('123456789')), 0xe306_9283);
  t.is(crc32c(new Uint8Array(32)), 0x8a91_36aa);
});
