// Streams of the host driver: commands that a thread runs while JavaScript goes on. Tests hold commands back, so that what happens
// meanwhile does not depend on the machine.

import { setImmediate } from 'node:timers/promises';

import test, { type ExecutionContext } from 'ava';

import { DenseKernels, DeviceMemory, Driver, isKvError, Kernels, KvCache, type Weight } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { sharedFloats } from '../helpers/shared-floats.js';

const inputs = 64;

/** Kernels on a stream, and a product that writes ones into an output of 8. */
function scene(t: ExecutionContext) {
  const driver = Driver.open('host');
  const stream = driver.acquireStream();
  const dense = new DenseKernels({ driver, stream, threads: 2 });
  const weight: Weight = { data: sharedFloats(new Float32Array(8 * inputs).fill(1 / inputs)), dtype: 'float32', outputs: 8, inputs };
  const input = sharedFloats(new Float32Array(inputs).fill(1));
  const multiply = (output: Float32Array | bigint): void => { dense.multiply(input, 1, { weight, output }); };
  const hold = (isHeld: boolean): void => { nativeOf(driver).failCall('hold', isHeld ? 1 : 0, 0); };
  const close = (): void => {
    dense.close();
    driver.releaseStream(stream);
    driver.close();
  };
  t.teardown(() => { if (!driver.isClosed) hold(false); });
  return { driver, stream, dense, multiply, hold, close };
}

const ones = new Float32Array(8).fill(1);
const zeros = new Float32Array(8);

const seed = seedOf('streams');
test(`on a stream kernels give the bits that they give without one (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const driver = Driver.open('host');
  const floats = (length: number): Float32Array => sharedFloats(Array.from({ length }, () => 2 * random.next() - 1));
  const cacheOf = (): KvCache => new KvCache({
    model: { layers: 2, kvHeads: 2, headDim: 16, dtype: 'float16' }, slots: 3, maxTokens: 200, memoryBudgetBytes: 2 ** 24, pageBytes: 65_536, driver,
  });
  const places = [0n, driver.acquireStream()].map((stream) => {
    const cache = cacheOf();
    const sequences = [cache.acquire(), cache.acquire(), cache.acquire()];
    return { stream, cache, sequences, kernels: new Kernels({ cache, queryHeads: 4, stream, threads: 2 }), dense: new DenseKernels({ driver, stream, threads: 2 }) };
  });
  for (let round = 0; round < 12; round += 1) {
    const counts = [0, 1, 2].map(() => (round % 2 === 0 ? 1 + random.integer(20) : 1));
    const rows = counts.reduce((sum, count) => sum + count, 0);
    const [hidden, table, norm] = [floats(rows * inputs), floats(256 * 16), floats(inputs)];
    const weight: Weight = { data: floats(96 * inputs), dtype: 'float32', outputs: 96, inputs };
    const tokens = Int32Array.from({ length: rows }, () => random.integer(96));
    const positions = Int32Array.from({ length: rows }, () => random.integer(256));
    const answers: Float32Array[][] = [];
    for (const { stream, cache, sequences, kernels, dense } of places) {
      const made = [hidden.length, rows * 96, rows * 64, rows * 64].map(sharedFloats);
      const [normalized, products, attended, embedded] = made as [Float32Array, Float32Array, Float32Array, Float32Array];
      const batch = cache.createBatch();
      counts.forEach((count, index) => { batch.add(sequences[index]!, count); });
      cache.prepare(batch);
      dense.normalize(hidden, rows, { weight: norm, width: inputs, epsilon: 1e-5 }, normalized);
      dense.multiply(normalized, rows, { weight, output: products });
      dense.rotate(products, rows, { heads: 6, dim: 16 }, positions, table);
      kernels.append(0, batch, products, products);
      kernels[round % 2 === 0 ? 'prefillAttention' : 'decodeAttention'](0, batch, products, attended);
      dense.gate(attended, products, rows * 64, attended);
      dense.gather(weight, tokens, rows, embedded);
      const [given, said] = [positions.slice(), tokens.slice()];
      positions.fill(0); // they were copied
      tokens.fill(0);
      cache.commit(batch); // the fence is the kernels'
      await driver.synchronize(stream);
      positions.set(given);
      tokens.set(said);
      answers.push(made);
    }
    t.deepEqual(answers[1], answers[0], `round ${round}`);
  }
  for (const { stream, cache, sequences, kernels, dense } of places) {
    for (const sequence of sequences) sequence.release();
    dense.close();
    kernels.close();
    cache.verify();
    cache.close();
    if (stream !== 0n) driver.releaseStream(stream);
  }
  driver.close();
});

test('JavaScript goes on while commands are queued, and `synchronize` resolves when they are done', async (t) => {
  const { driver, stream, multiply, hold, close } = scene(t);
  hold(true);
  const output = sharedFloats(8);
  multiply(output);
  let isDone = false;
  const done = driver.synchronize(stream).then(() => { isDone = true; });
  for (let turn = 0; turn < 20; turn += 1) await setImmediate();
  t.false(isDone);
  t.deepEqual(output, sharedFloats(8));
  t.throws(() => driver.close(), { code: 'KV_DRIVER_IN_USE' });
  hold(false);
  await done;
  t.deepEqual(new Float32Array(output), ones);
  await driver.synchronize(stream);
  await driver.synchronize(0n);
  close();
});

test('an aborted wait drops what has not begun, rejects once nothing runs, and the stream goes on', async (t) => {
  const { driver, stream, multiply, hold, close } = scene(t);
  hold(true);
  const [dropped, later] = [sharedFloats(8), sharedFloats(8)];
  multiply(dropped);
  const controller = new AbortController();
  const waited = driver.synchronize(stream, { signal: controller.signal });
  await setImmediate();
  controller.abort(new Error('enough'));
  const error = await t.throwsAsync(waited, { code: 'KV_ABORTED' });
  t.is((error!.cause as Error).message, 'enough');
  multiply(dropped);
  await t.throwsAsync(driver.synchronize(stream, { signal: AbortSignal.abort() }), { code: 'KV_ABORTED' });
  t.deepEqual(new Float32Array(dropped), zeros);
  hold(false);
  multiply(later);
  await driver.synchronize(stream, { signal: new AbortController().signal });
  t.deepEqual(new Float32Array(later), ones);
  t.deepEqual(new Float32Array(dropped), zeros);
  close();
});

test('a command that fails is named by its number, those behind it are dropped, and the stream goes on', async (t) => {
  const { driver, stream, multiply, close } = scene(t);
  const outputs = [1, 2, 3, 4].map(() => sharedFloats(8));
  await driver.synchronize(stream);
  nativeOf(driver).failCall('command', 3, 5);
  for (const output of outputs) multiply(output);
  const error = await t.throwsAsync(driver.synchronize(stream), { code: 'KV_COMMAND_FAILED' });
  t.true(isKvError(error, 'KV_COMMAND_FAILED') && error.details.command === 2 && isKvError(error.cause, 'KV_DRIVER_CALL_FAILED'));
  t.deepEqual(outputs.map((output) => output[0]), [1, 1, 0, 0]);
  multiply(outputs[3]!);
  await driver.synchronize(stream);
  t.is(outputs[3]![0], 1);
  nativeOf(driver).failCall('command', 1, 5);
  multiply(outputs[2]!);
  for (let turn = 0; turn < 3; turn += 1) await setImmediate(); // nobody waited when it failed
  await t.throwsAsync(driver.synchronize(stream), { code: 'KV_COMMAND_FAILED' });
  close();
});

test('commands on a stream take shared memory and addresses alone, and streams are the driver\'s own', (t) => {
  const { driver, stream, dense, multiply, close } = scene(t);
  const invalid = { code: 'KV_INVALID_OPTION' };
  refuses(t, () => multiply(new Float32Array(8)), 'KV_INVALID_OPTION', { received: 'one over an ArrayBuffer' });
  const cache = new KvCache({ model: { layers: 1, kvHeads: 1, headDim: 8, dtype: 'float32' }, slots: 1, maxTokens: 8, memoryBudgetBytes: 2 ** 24, driver });
  const kernels = new Kernels({ cache, stream });
  const batch = cache.createBatch();
  batch.add(cache.acquire(), 1);
  cache.prepare(batch);
  refuses(t, () => kernels.append(0, batch, new Float32Array(8), sharedFloats(8)),
    'KV_INVALID_OPTION', { option: 'keys', received: 'one over an ArrayBuffer' });
  for (const foreign of [stream + 1n, 1n << 40n]) {
    t.throws(() => new Kernels({ cache, stream: foreign }), invalid);
    t.throws(() => new DenseKernels({ driver, stream: foreign }), invalid);
  }
  cache.discard(batch);
  kernels.close();
  cache.close();
  dense.close();
  close();
});

test('a closed driver waits for no stream, and an open one for none of others', async (t) => {
  const { driver, stream, close } = scene(t);
  await t.throwsAsync(driver.synchronize(stream + 1n), { code: 'KV_INVALID_OPTION' });
  close();
  await t.throwsAsync(driver.synchronize(stream), { code: 'KV_CLOSED' });
});

test('a slot stays out of use while commands that were queued for it have not run', async (t) => {
  const { driver, stream, hold, close } = scene(t);
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 8, dtype: 'float32' }, slots: 2, maxTokens: 4_096, memoryBudgetBytes: 4 * 65_536, pageBytes: 65_536,
    driver, mapper: 'off', prefixCache: 'off',
  });
  const kernels = new Kernels({ cache, stream });
  const rows = sharedFloats(new Float32Array(4_096 * 8).fill(3));
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 4_000);
  cache.prepare(batch);
  hold(true);
  kernels.append(0, batch, rows, rows);
  cache.commit(batch);
  sequence.release();
  t.is(cache.counts().retiringSlots, 1);
  const next = cache.acquire();
  const second = cache.createBatch();
  second.add(next, 4_000);
  t.throws(() => cache.prepare(second), { code: 'KV_OUT_OF_PAGES' }, 'all pages are under the queued command');
  hold(false);
  await driver.synchronize(stream);
  cache.prepare(second);
  t.is(cache.counts().retiringSlots, 0);
  cache.discard(second);
  next.release();
  cache.verify();
  kernels.close();
  cache.close();
  close();
});

test('whatever is closed with commands queued on it waits for them', (t) => {
  const { driver, stream, dense, multiply } = scene(t);
  const memory = new DeviceMemory({ driver, bytes: 32 });
  const done = (): boolean => {
    const event = nativeOf(driver).recordEvent(stream);
    try {
      return nativeOf(driver).queryEvent(event);
    } finally {
      nativeOf(driver).destroyEvent(event);
    }
  };
  for (let index = 0; index < 500; index += 1) multiply(memory.address);
  memory.close();
  t.true(done());
  const output = sharedFloats(8);
  for (let index = 0; index < 500; index += 1) multiply(output);
  dense.close();
  t.true(done());
  t.deepEqual(new Float32Array(output), ones);
  driver.releaseStream(stream);
  driver.close();
});
