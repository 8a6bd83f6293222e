// The disk store beside embedded engines that could keep its blocks: LMDB, LevelDB and RocksDB, each through its package for Node.js. Payloads of blocks
// are 1 to 4 MiB that are written once: what writing and reading them costs, how long the JavaScript thread computes at a time meanwhile, and what of a
// disk they take once half of them were removed. All out of the page cache, without compression and without waiting for the disk. Runs where the
// engines are installed: `npm install --prefix build/engines --no-save --ignore-scripts lmdb classic-level rocksdb`.

import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import { LoopDelays } from './loop-delays.js';
import { format, median, type BenchResult } from './measure.js';

const folderOfEngines = path.resolve(__dirname, '..', '..', 'build', 'engines');
const MiB = 2 ** 20;
const valueBytes = MiB;
const values = 384;
const inFlight = 8;
const rounds = 5;

interface Engine {
  put(key: Buffer, value: Buffer): Promise<unknown>;
  get(key: Buffer): Promise<unknown>;
  remove(key: Buffer): Promise<unknown>;
  close(): Promise<unknown>;
}

type Open = (directory: string) => Promise<Engine>;

const diskStore: Open = async (directory) => {
  const store = await DiskStore.open({ directory, bytes: 1_024 * MiB, namespace: Buffer.from('bench'), threads: 4, durability: 'none', direct: false });
  // It reads into its caller's memory, which a cache uses again; the engines return memory of their own.
  const targets = Array.from({ length: 2 * inFlight }, () => Buffer.alloc(valueBytes));
  let next = 0;
  return {
    put: async (key, source) => store.put({
      key: key.toString('hex'), parent: '0'.repeat(64), position: 0, tokens: new Int32Array(16), notes: new Uint8Array(0), sums: new Uint32Array(1),
    }, [source.length / 16], source),
    get: async (key) => store.get(key.toString('hex'), targets[next++ % targets.length]!),
    remove: async (key) => store.remove([key.toString('hex')]),
    close: async () => store.close(),
  };
};

/** As much of the packages as is used here. */
interface Lmdb {
  open(options: object): { put(key: Buffer, value: Buffer): Promise<boolean>; getBinary(key: Buffer): Buffer; remove(key: Buffer): Promise<boolean>; close(): Promise<void> };
}

interface Level {
  open(options: object): Promise<void>;
  put(key: Buffer, value: Buffer): Promise<void>;
  get(key: Buffer): Promise<Buffer>;
  del(key: Buffer): Promise<void>;
  close(): Promise<void>;
}

type WithCallback = (...parameters: unknown[]) => void;

const lmdb = (require: NodeJS.Require): Open => async (directory) => {
  const database = (require('lmdb') as Lmdb).open({ path: `${directory}/data`, encoding: 'binary', compression: false, noSync: true, keyEncoding: 'binary' });
  return {
    put: async (key, value) => database.put(key, value),
    get: async (key) => database.getBinary(key),
    remove: async (key) => database.remove(key),
    close: async () => database.close(),
  };
};

const leveldb = (require: NodeJS.Require): Open => async (directory) => {
  const { ClassicLevel } = require('classic-level') as { readonly ClassicLevel: new (directory: string, options: object) => Level };
  const database = new ClassicLevel(directory, { keyEncoding: 'buffer', valueEncoding: 'buffer', compression: false });
  await database.open({ compression: false });
  return {
    put: async (key, value) => database.put(key, value), get: async (key) => database.get(key), remove: async (key) => database.del(key), close: async () => database.close(),
  };
};

const rocksdb = (require: NodeJS.Require): Open => async (directory) => {
  const make = require('rocksdb') as (directory: string) => Readonly<Record<'open' | 'put' | 'get' | 'del' | 'close', WithCallback>>;
  const database = make(directory);
  const called = async (method: keyof typeof database, ...given: unknown[]): Promise<unknown> => new Promise((resolve, reject) => {
    database[method](...given, (error: Error | null, value: unknown) => { if (error) reject(error); else resolve(value); });
  });
  await called('open', { compression: false });
  return {
    put: async (key, value) => called('put', key, value), get: async (key) => called('get', key), remove: async (key) => called('del', key), close: async () => called('close'),
  };
};

/** Bytes that the process has had written to disks. */
function writtenBytes(): number {
  return Number(/^write_bytes: (\d+)$/m.exec(readFileSync('/proc/self/io', 'utf8'))![1]);
}

function bytesOnDisk(directory: string): number {
  return readdirSync(directory, { recursive: true, encoding: 'utf8' }).reduce((sum, name) => sum + 512 * statSync(path.join(directory, name)).blocks, 0);
}

const keyOf = (number: number): Buffer => Buffer.alloc(32, number + 1).fill(number >> 8, 16);

/** Calls `one` for each number of an order, some at a time; returns nanoseconds. */
async function each(order: readonly number[], one: (number: number) => Promise<unknown>): Promise<number> {
  const startNs = process.hrtime.bigint();
  let next = 0;
  await Promise.all(Array.from({ length: inFlight }, async () => { while (next < order.length) await one(order[next++]!); }));
  return Number(process.hrtime.bigint() - startNs);
}

async function measure(name: string, open: Open, parent: string): Promise<BenchResult> {
  const directory = path.join(parent, name);
  mkdirSync(directory);
  const random = new Random(1);
  const value = Buffer.from(Uint8Array.from({ length: valueBytes }, () => random.integer(256)));
  const all = Array.from({ length: values }, (_, number) => number);
  const engine = await open(directory);
  const writtenBefore = writtenBytes();
  const putNs = await each(all, async (number) => engine.put(keyOf(number), value));
  const rates: number[] = [];
  const computed: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const order = [...all].sort(() => random.next() - 0.5);
    const delays = new LoopDelays();
    rates.push(values * valueBytes / await each(order, async (number) => engine.get(keyOf(number))));
    computed.push(delays.end().longestCpuMs);
  }
  for (const number of all) if (number % 2 === 0) await engine.remove(keyOf(number));
  await each(all.slice(0, values / 4), async (number) => engine.put(keyOf(values + number), value)); // as a cache goes on
  await engine.close();
  const kept = values / 2 + values / 4;
  const onDisk = bytesOnDisk(directory) / (kept * valueBytes);
  const written = (writtenBytes() - writtenBefore) / ((values + values / 4) * valueBytes);
  return {
    name: `${name}: ${format(values, 0)} values of 1 MiB`,
    value: `put at ${format(values * valueBytes / putNs, 2)} GB/s, read at ${format(median(rates), 2)} GB/s, the JavaScript thread computing ${format(median(computed), 1)} ms at a time at most`,
    against: `${format(written, 2)} × their bytes written to the disk; half of them removed and a quarter put: ${format(onDisk, 2)} × what is left on it`,
    isGoalMet: undefined,
    numbers: { putGBPerS: values * valueBytes / putNs, readGBPerS: median(rates), longestCpuMs: median(computed), written, onDisk },
  };
}

export async function engines(): Promise<BenchResult[]> {
  if (!existsSync(folderOfEngines)) {
    console.error(`To compare embedded engines: npm install --prefix ${path.relative(process.cwd(), folderOfEngines)} --no-save --ignore-scripts lmdb classic-level rocksdb`);
    return [];
  }
  const require = createRequire(path.join(folderOfEngines, 'index.js'));
  const parent = mkdtempSync(path.join(process.env['VKV_BENCH_FOLDER'] ?? tmpdir(), 'vkv-bench-engines-'));
  try {
    const results: BenchResult[] = [];
    for (const [name, open] of [['disk store', diskStore], ['LMDB', lmdb(require)], ['LevelDB', leveldb(require)], ['RocksDB', rocksdb(require)]] as const) {
      results.push(await measure(name, open, parent));
    }
    return results;
  } finally {
    rmSync(parent, { recursive: true, force: true });
  }
}
