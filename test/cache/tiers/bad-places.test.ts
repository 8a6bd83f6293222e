// Places that a cache cannot use: `ready` rejects with an error that names the remedy, the files there stay as they were, and the cache does
// without.

import { spawn, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { diskTier, isKvError, redisTier, type Tier } from 'virtual-kv';

import { crc32c } from '../../helpers/crc32c.js';
import { patient } from '../../helpers/patient.js';
import { RedisServer } from '../../helpers/redis-server.js';
import { redisTest } from '../../helpers/redis-test.js';
import type { ChildReport, ChildTask } from './lasting-child.js';
import { LastingCache, textTokens } from './lasting-cache.js';
import { slow } from '../../runner/slow.js';

const folder = fs.mkdtempSync(path.join(tmpdir(), 'vkv-bad-places-'));
const isRoot = process.getuid!() === 0;
const nobody = 65_534;

/** Every file below, with its bytes. */
function tree(directory: string): Record<string, string> {
  const files = fs.readdirSync(directory, { recursive: true, encoding: 'utf8' }).filter((name) => fs.statSync(path.join(directory, name)).isFile());
  return Object.fromEntries(files.toSorted().map((name) => [name, fs.readFileSync(path.join(directory, name)).toString('base64')]));
}

function tierAt(directory: string): Tier {
  return diskTier({ directory, bytes: 64 * 2 ** 20, admit: 'all' });
}

async function fill(directory: string): Promise<string> {
  const cache = new LastingCache([tierAt(directory)]);
  await cache.ready();
  cache.compute(1);
  await cache.close();
  return path.join(directory, fs.readdirSync(directory)[0]!);
}

async function assertRefused(t: ExecutionContext, tier: Tier, code: string, message: RegExp): Promise<void> {
  const cache = new LastingCache([tier]);
  const error = await t.throwsAsync(cache.ready());
  t.true(isKvError(error) && error.code === code, String(error));
  t.regex(error!.message, message);
  t.deepEqual(cache.compute(1), { found: 0, wrong: 0 }, 'the cache does without');
  await cache.close();
}

/** As a user without rights; where the tests run as one, in this process's user. */
function asNobody(task: ChildTask): ChildReport {
  const { stdout, status } = spawnSync(process.execPath, [path.join(__dirname, 'lasting-child.js'), JSON.stringify({ ...task, ...isRoot ? { uid: nobody } : {} })], {
    stdio: ['ignore', 'pipe', 'inherit'], encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`the process ended with ${status}`);
  return JSON.parse(stdout) as ChildReport;
}

slow('starts processes')('a directory without rights, to make the store in or to open it', async (t) => {
  const parent = path.join(folder, 'rights');
  fs.mkdirSync(parent, { mode: 0o755 });
  fs.chmodSync(folder, 0o755);
  const directory = path.join(parent, 'store');
  await fill(directory);
  const before = tree(parent);
  for (const [where, mode] of [[path.join(parent, 'new'), 0o555], [directory, 0o555], [directory, 0o000]] as const) {
    for (const name of fs.readdirSync(directory)) fs.chmodSync(path.join(directory, name), 0o555);
    fs.chmodSync(directory, mode);
    fs.chmodSync(parent, 0o555);
    const { error } = asNobody({ work: 'compute', directory: where, texts: [1] });
    fs.chmodSync(parent, 0o755);
    fs.chmodSync(directory, 0o755);
    t.is(error?.code, 'KV_STORE_UNAVAILABLE', where);
    t.regex(error!.message, /EACCES|EPERM/);
    for (const name of fs.readdirSync(directory)) fs.chmodSync(path.join(directory, name), 0o755);
    t.deepEqual(tree(parent), before);
  }
});

test('a file in place of the directory, something else in the folder, and other versions of the store and of a block', async (t) => {
  const file = path.join(folder, 'file');
  fs.writeFileSync(file, 'mine');
  await assertRefused(t, tierAt(file), 'KV_STORE_UNAVAILABLE', /name a directory/);
  t.is(fs.readFileSync(file, 'utf8'), 'mine');

  const directory = path.join(folder, 'foreign');
  const store = await fill(directory);
  const changed = async (name: RegExp, change: (bytes: Buffer) => void, code: string, message: RegExp): Promise<void> => {
    const place = path.join(store, fs.readdirSync(store).find((one) => name.test(one))!);
    const good = fs.readFileSync(place);
    const bytes = Buffer.from(good);
    change(bytes);
    fs.writeFileSync(place, bytes);
    const before = tree(directory);
    await assertRefused(t, tierAt(directory), code, message);
    t.deepEqual({ ...tree(directory), [path.join(path.basename(store), 'lock')]: '' }, { ...before, [path.join(path.basename(store), 'lock')]: '' });
    fs.writeFileSync(place, good);
  };
  const ofVersion = (version: number) => (bytes: Buffer): void => {
    bytes.writeUInt16LE(version, 4);
    const length = bytes.toString('latin1', 0, 4) === 'VKVB' ? bytes.readUInt32LE(12) : 4_096;
    bytes.writeUInt32LE(crc32c(Buffer.concat([bytes.subarray(0, 252), bytes.subarray(256, length)])), 252);
  };
  await changed(/^identity$/, (bytes) => bytes.fill(7), 'KV_STORE_FOREIGN', /.{20}/);
  await changed(/^identity$/, ofVersion(1), 'KV_STORE_VERSION', /format 1.*delete the folder/);
  await changed(/^identity$/, ofVersion(3), 'KV_STORE_VERSION', /format 3.*update the package/);
  await changed(/\.block$/, ofVersion(3), 'KV_STORE_VERSION', /format 3/);
  const cache = new LastingCache([tierAt(directory)]);
  await cache.ready();
  t.is((await cache.serve(1)).found, textTokens - 1, 'and it is as it was');
  await cache.close();
});

slow('starts processes')('a folder that another process has, until that is killed', async (t) => {
  const directory = path.join(folder, 'held');
  await fill(directory);
  const program = `
    const { LastingCache } = require(${JSON.stringify(require.resolve('./lasting-cache.js'))});
    const { diskTier } = require('virtual-kv');
    const cache = new LastingCache([diskTier({ directory: process.argv[1], bytes: 2 ** 26 })]);
    cache.ready().then(() => { console.log('open'); setInterval(() => {}, 1e6); });`;
  const child = spawn(process.execPath, ['-e', program, directory], { cwd: process.cwd(), stdio: ['ignore', 'pipe', 'inherit'] });
  await new Promise((resolve) => { child.stdout.once('data', resolve); });
  await assertRefused(t, tierAt(directory), 'KV_STORE_LOCKED', new RegExp(`process ${child.pid!}\\b`));
  const gone = new Promise((resolve) => { child.once('exit', resolve); });
  child.kill('SIGKILL');
  await gone;
  const cache = new LastingCache([tierAt(directory)]);
  await cache.ready();
  t.is((await cache.serve(1)).found, textTokens - 1);
  await cache.close();
});

const disk = path.join(folder, 'small-disk');
fs.mkdirSync(disk);
const canMount = isRoot && process.platform === 'linux' && spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=64m', 'none', disk]).status === 0;
test.after.always(() => {
  if (canMount) spawnSync('umount', [disk]);
  fs.rmSync(folder, { recursive: true, force: true });
});

(canMount ? test : test.skip)('a disk that is full costs what does not fit, and takes text again when it was freed', async (t) => {
  const filler = path.join(disk, 'filler');
  fs.writeFileSync(filler, Buffer.alloc(64 * 2 ** 20 - 24 * 1024));
  const full = new LastingCache([tierAt(path.join(disk, 'store'))]);
  await full.ready();
  full.compute(1);
  await full.cache.prefixes.tiers!.settled();
  const { blocks, refusals, own } = full.cache.prefixes.tiers!.metrics().tiers[0]!;
  t.deepEqual([blocks, refusals.full > 0], [0, true]);
  t.regex(String(own!['lastError']), /ENOSPC/);
  fs.rmSync(filler);
  full.compute(1);
  await full.cache.prefixes.tiers!.settled();
  t.true(full.cache.prefixes.tiers!.metrics().tiers[0]!.blocks > 0, 'without a restart');
  await full.close();
  fs.writeFileSync(filler, Buffer.alloc(1));
  const again = new LastingCache([tierAt(path.join(disk, 'store'))]);
  await again.ready();
  t.deepEqual([(await again.serve(1)).found, again.compute(1).wrong], [textTokens - 1, 0]);
  await again.close();
});

redisTest('a store that is required, and refuses the password or is not there', async (t) => {
  const server = await RedisServer.start(t, '--requirepass', 'right');
  const at = (url: string): Tier => redisTier({ url, required: true, ...patient });
  await assertRefused(t, at(`redis://:wrong@127.0.0.1:${server.port}`), 'KV_TIER_REFUSED', /password|credentials/i);
  await server.kill();
  await assertRefused(t, at(`redis://:right@127.0.0.1:${server.port}`), 'KV_TIER_UNREACHABLE', /127\.0\.0\.1/);
});
