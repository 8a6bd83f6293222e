// The Redis tier on loopback with blocks of 1 … 4 MiB, 8 in flight: what the tier adds to its bare client, and how the clients compare, by
// processor time per GB, which a busy machine changes least, and by bandwidth. Rounds of all are interleaved in one run. iovalkey and
// ioredis are there with the tests; the others are measured where they are installed (`npm install --no-save redis @valkey/valkey-glide`).

import { createRequire } from 'node:module';

import { redisTier } from 'virtual-kv';

import { makeBlock } from '#internal/tiers/contract-store.js';
import { hasRedis, RedisServer } from '../helpers/redis-server.js';
import { format, median, type BenchResult } from './measure.js';

const rounds = 5;
const inFlight = 8;
const roundBytes = 2 ** 26;
const mebibytes = [1, 2, 4] as const;
const headerBytes = 1_300;

/** Puts and gets of a block of this size under a number. */
interface Subject {
  readonly name: string;
  put(index: number): Promise<unknown>;
  get(index: number): Promise<unknown>;
}

type Operation = 'put' | 'get';

interface Samples {
  readonly cpuSecondsPerGb: number[];
  readonly gbPerSecond: number[];
}

export async function redisTierBench(): Promise<BenchResult[]> {
  if (!hasRedis) return [{ name: 'blocks in Redis', value: 'not measured', against: 'redis-server is not installed', isGoalMet: undefined, numbers: {} }];
  const server = await RedisServer.start(undefined);
  const closers: (() => unknown)[] = [];
  try {
    const results: BenchResult[] = [];
    for (const size of mebibytes) results.push(...await compare(size, await subjects(server, size * 2 ** 20, closers)));
    return results;
  } finally {
    await Promise.allSettled(closers.map(async (close) => close()));
    await server.stop();
  }
}

async function compare(size: number, all: readonly Subject[]): Promise<BenchResult[]> {
  const samples = new Map<string, Samples>();
  for (let round = 0; round <= rounds; round += 1) {
    for (const operation of ['put', 'get'] as const) {
      for (const subject of all) {
        const { cpuSecondsPerGb, gbPerSecond } = await measure(subject, operation, size * 2 ** 20);
        if (round === 0) continue; // warm-up
        const key = `${subject.name} ${operation}`;
        const of = samples.get(key) ?? { cpuSecondsPerGb: [], gbPerSecond: [] };
        samples.set(key, of);
        of.cpuSecondsPerGb.push(cpuSecondsPerGb);
        of.gbPerSecond.push(gbPerSecond);
      }
    }
  }
  const [tier] = all;
  const of = (name: string, operation: Operation): { readonly cpu: number; readonly gb: number } => {
    const { cpuSecondsPerGb, gbPerSecond } = samples.get(`${name} ${operation}`)!;
    return { cpu: median(cpuSecondsPerGb), gb: median(gbPerSecond) };
  };
  return (['put', 'get'] as const).map((operation) => {
    const own = of(tier!.name, operation);
    const bare = of('iovalkey', operation);
    const others = all.slice(1).map(({ name }) => `${name} ${format(of(name, operation).cpu, 2)} s (${format(of(name, operation).gb, 2)} GB/s)`);
    return {
      name: `blocks of ${size} MiB in Redis on loopback: ${operation}`,
      value: `${format(own.cpu, 2)} s of processor time per GB, ${format(own.gb, 2)} GB/s`,
      against: `${format(own.cpu / bare.cpu, 2)} × its client's processor time; clients: ${others.join(', ')}`,
      isGoalMet: undefined,
      numbers: Object.fromEntries(all.map(({ name }) => [`${name} ${operation}`, of(name, operation).cpu])),
    };
  });
}

async function measure(subject: Subject, operation: Operation, bytes: number): Promise<{ readonly cpuSecondsPerGb: number; readonly gbPerSecond: number }> {
  const count = roundBytes / bytes;
  let next = 0;
  const cpu = process.cpuUsage();
  const begin = process.hrtime.bigint();
  await Promise.all(Array.from({ length: inFlight }, async () => {
    while (next < count) {
      const index = next;
      next += 1;
      await subject[operation](index);
    }
  }));
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  const { user, system } = process.cpuUsage(cpu);
  return { cpuSecondsPerGb: (user + system) / 1e6 / (roundBytes / 1e9), gbPerSecond: roundBytes / 1e9 / seconds };
}

async function subjects(server: RedisServer, bytes: number, closers: (() => unknown)[]): Promise<Subject[]> {
  const found = [await tierSubject(server, bytes, closers)];
  for (const make of [ioredisLike('iovalkey'), ioredisLike('ioredis'), nodeRedis, glide]) {
    try {
      found.push(await make(server, bytes, closers));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'MODULE_NOT_FOUND') throw error;
    }
  }
  return found;
}

async function tierSubject(server: RedisServer, bytes: number, closers: (() => unknown)[]): Promise<Subject> {
  const tier = redisTier({ url: server.url, damaged: 'keep' }); // so that puts of what is there are sent
  closers.push(() => tier.close());
  const stripeTokenBytes = Array.from({ length: 64 }, () => bytes / 64 / 256);
  const namespace = 'ab'.repeat(32);
  await tier.open({ namespace, stripeTokenBytes, blockTokens: 256, found: () => {}, lost: () => {} });
  const blocks = Array.from({ length: 16 }, (_, seed) => makeBlock({ namespace, stripeTokenBytes }, { seed, tokens: 256 }));
  const targets = blocks.map(() => new Uint8Array(bytes));
  return {
    name: 'the tier',
    put: async (index) => {
      const { record, payload } = blocks[index % 16]!;
      if (!(await tier.put(record, payload)).isStored) throw new Error('not stored');
    },
    get: async (index) => {
      if (!(await tier.get(blocks[index % 16]!.record.key, targets[index % 16]!)).isFound) throw new Error('not found');
    },
  };
}

const load = createRequire(__filename) as (name: string) => unknown;

/** What each client is measured with: a value made of header and payload, and a reply copied out of the client's memory. */
function subjectOf(name: string, bytes: number, set: (key: string, value: Buffer) => Promise<unknown>, get: (key: string) => Promise<unknown>): Subject {
  const payload = new Uint8Array(bytes).fill(7);
  const target = new Uint8Array(bytes);
  return {
    name,
    put: (index) => {
      const value = Buffer.allocUnsafeSlow(headerBytes + bytes);
      value.fill(0, 0, headerBytes);
      value.set(payload, headerBytes);
      return set(`${name}:${index % 16}`, value);
    },
    get: async (index) => {
      target.set((await get(`${name}:${index % 16}`) as Buffer).subarray(headerBytes));
    },
  };
}

const ioredisLike = (name: string) => async ({ port }: RedisServer, bytes: number, closers: (() => unknown)[]): Promise<Subject> => {
  const { Redis } = load(name) as { Redis: new (options: object) => import('iovalkey').Redis };
  const client = new Redis({ port, host: '127.0.0.1' });
  closers.push(() => client.quit());
  return subjectOf(name, bytes, (key, value) => client.set(key, value, 'EX', 86_400), (key) => client.getBuffer(key));
};

interface NodeRedis {
  readonly RESP_TYPES: { readonly BLOB_STRING: number };
  createClient(options: object): {
    connect(): Promise<unknown>;
    close(): Promise<unknown>;
    withTypeMapping(types: object): { get(key: string): Promise<unknown> };
    set(key: string, value: Buffer, options: object): Promise<unknown>;
  };
}

async function nodeRedis({ port }: RedisServer, bytes: number, closers: (() => unknown)[]): Promise<Subject> {
  const { RESP_TYPES, createClient } = load('redis') as NodeRedis;
  const client = createClient({ socket: { port, host: '127.0.0.1' } });
  await client.connect();
  closers.push(() => client.close());
  const reader = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  return subjectOf('redis', bytes, (key, value) => client.set(key, value, { EX: 86_400 }), (key) => reader.get(key));
}

interface Glide {
  readonly Decoder: { readonly Bytes: unknown };
  readonly TimeUnit: { readonly Seconds: unknown };
  readonly GlideClient: { createClient(options: object): Promise<{
    set(key: string, value: Buffer, options: object): Promise<unknown>;
    get(key: string, options: object): Promise<unknown>;
    close(): void;
  }>; };
}

async function glide({ port }: RedisServer, bytes: number, closers: (() => unknown)[]): Promise<Subject> {
  const { Decoder, TimeUnit, GlideClient } = load('@valkey/valkey-glide') as Glide;
  const client = await GlideClient.createClient({ addresses: [{ host: '127.0.0.1', port }], requestTimeout: 30_000 });
  closers.push(() => client.close());
  const expiry = { type: TimeUnit.Seconds, count: 86_400 };
  return subjectOf('valkey-glide', bytes, (key, value) => client.set(key, value, { expiry }), (key) => client.get(key, { decoder: Decoder.Bytes }));
}
