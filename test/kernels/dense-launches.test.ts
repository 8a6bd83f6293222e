// The dense CUDA kernels' launches, on the simulated device, which holds each against the kernel's own rules and checks that all
// memory is mapped: results are those of the CPU's kernels.

import test from 'ava';

import { DenseKernels, type Weight } from 'virtual-kv';
import { MockDevice, type MockCall, type MockDeviceOptions } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { DenseWorld } from '../helpers/dense-world.js';
import { DeviceFloats } from '../helpers/device-floats.js';
import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { scale } from '../runner/tier.js';

const tolerance = 1e-5;

const openDevice = (options: MockDeviceOptions = {}): MockDevice =>
  new MockDevice({ granularityBytes: 65_536, memoryBytes: 2 ** 28, hasGarbage: true, ...options });

function randomFloats(random: Random, length: number): Float32Array {
  return Float32Array.from({ length }, () => 2 * random.next() - 1);
}

/** The larger of 1 and the largest expected value is what errors are held against. */
function worstOf(actual: Float32Array, expected: Float32Array): number {
  const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 1);
  return expected.reduce((worst, value, index) => {
    const difference = Math.abs(value - actual[index]!) / largest;
    return difference <= worst ? worst : difference; // NaN is the worst
  }, 0);
}

for (const streams of ['immediate', 'manual'] as const) {
  const seed = seedOf(`dense launches ${streams}`);

  test(`products, norms, rotations, gates, caps and embeddings are the CPU's (${streams} streams, seed ${seed})`, (t) => {
    const random = new Random(seed);
    const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
    const device = openDevice({ streams });
    const world = new DenseWorld(t, device.driver, random);
    t.is(world.dense.target, 'sm_90');
    for (let round = 0; round < 25 * scale; round += 1) {
      const rows = pick([1, 2, 3, 4, 7, 8, 20, 70]);
      world.multiply(rows, pick([1, 2, 8, 48, 100, 264]), Array.from({ length: pick([1, 3]) }, () => pick([1, 15, 16, 50])));
      world.transform(rows, pick([1, 2, 3]), 2 * pick([1, 3, 8, 32]));
    }
    world.close();
    device.assertNoLeaks();
    device.close();
  });
}

test('rows beyond one launch take several, with their tokens and positions', (t) => {
  const device = openDevice();
  const [cpu, gpu] = [new DenseKernels(), new DenseKernels({ driver: device.driver })];
  const memory = new DeviceFloats(device.driver);
  const launches = (call: () => void): number => {
    const before = device.callCounts().cuLaunchKernel;
    call();
    return device.callCounts().cuLaunchKernel - before;
  };
  const rows = 4100;
  const random = new Random(1);
  const weight: Weight = { data: randomFloats(random, 6), dtype: 'float32', outputs: 3, inputs: 2 };
  const table = randomFloats(random, 5 * 2);
  const indices = Int32Array.from({ length: rows }, () => random.integer(5));
  const [embedded, product] = [new Float32Array(2 * rows), new Float32Array(3 * rows)];
  const [input, output] = [memory.put(embedded), memory.put(product)];
  const tableThere = memory.put(table);
  const tableWeight: Weight = { data: table, dtype: 'float32', outputs: 5, inputs: 2 };
  t.is(launches(() => gpu.gather({ ...tableWeight, data: tableThere }, indices, rows, input)), 5);
  t.is(launches(() => gpu.rotate(input, rows, { heads: 1, dim: 2 }, indices, tableThere)), 5);
  t.is(launches(() => gpu.multiply(input, rows, { weight: { ...weight, data: memory.put(weight.data as Float32Array) }, output })), 2);
  t.is(launches(() => gpu.gate(input, input, 2 * rows, input)), 1);
  t.is(launches(() => gpu.gather({ ...tableWeight, data: tableThere }, indices, 0, input)), 0);
  cpu.gather(tableWeight, indices, rows, embedded);
  cpu.rotate(embedded, rows, { heads: 1, dim: 2 }, indices, table);
  cpu.multiply(embedded, rows, { weight, output: product });
  cpu.gate(embedded, embedded, 2 * rows, embedded);
  t.true(worstOf(memory.read(input, 2 * rows), embedded) < tolerance);
  t.true(worstOf(memory.read(output, 3 * rows), product) < tolerance);
  memory.close();
  gpu.close();
  device.assertNoLeaks();
  device.close();
});

test('work is queued on the stream that the kernels were opened for, and read behind it', (t) => {
  const device = openDevice({ streams: 'manual' });
  const native = nativeOf(device.driver);
  const stream = native.createStream();
  const gpu = new DenseKernels({ driver: device.driver, stream });
  const memory = new DeviceFloats(device.driver);
  const input = memory.put(Float32Array.of(1, 2));
  gpu.gate(input, input, 2, input);
  t.is(device.pendingWork, 1);
  t.deepEqual([...memory.read(input, 2)], [1, 2], 'the default stream does not wait for others here');
  device.completeStream(stream);
  t.true(memory.read(input, 2)[0]! < 1);
  memory.close();
  gpu.close();
  native.destroyStream(stream);
  device.assertNoLeaks();
  device.close();
});

test('on a device only addresses are taken, and shapes are checked all the same', (t) => {
  const device = openDevice();
  const gpu = new DenseKernels({ driver: device.driver });
  const floats = new Float32Array(8);
  refuses(t, () => gpu.gate(floats, floats, 8, floats), 'KV_INVALID_OPTION', { option: 'gate', reason: 'type' });
  refuses(t, () => gpu.normalize(8n, 1, { weight: floats, width: 8, epsilon: 0 }, 8n),
    'KV_INVALID_OPTION', { option: 'weight', reason: 'type' });
  refuses(t, () => gpu.multiply(8n, 1, { weight: { data: floats, dtype: 'float32', outputs: 1, inputs: 8 }, output: 8n }),
    'KV_INVALID_OPTION', { option: 'weight.data', reason: 'type' });
  refuses(t, () => gpu.rotate(8n, 1, { heads: 1, dim: 2 }, Int32Array.of(0), floats),
    'KV_INVALID_OPTION', { option: 'table', reason: 'type' });
  t.throws(() => gpu.rotate(8n, 1, { heads: 1, dim: 2 }, Int32Array.of(-1), 8n), { code: 'KV_INVALID_OPTION' });
  refuses(t, () => gpu.rotate(8n, 1, { heads: 1, dim: 2, pairs: 'neighbours' }, Int32Array.of(0), 8n),
    'KV_INVALID_OPTION', { option: 'pairs', expected: "'halves'" });
  const table: Weight = { data: 8n, dtype: 'float32', outputs: 2, inputs: 2 };
  refuses(t, () => gpu.gather(table, Int32Array.of(2), 1, 8n), 'KV_INVALID_OPTION', { option: 'tokens[0]' });
  t.throws(() => gpu.gather({ ...table, data: 0n }, Int32Array.of(0), 1, 8n), { code: 'KV_INVALID_OPTION' });
  t.is(device.callCounts().cuLaunchKernel, 0);
  gpu.close();
  device.close();
});

test('memory that is not mapped ends the device, as it would a GPU\'s context', (t) => {
  const device = openDevice();
  const gpu = new DenseKernels({ driver: device.driver });
  t.throws(() => gpu.gate(4096n, 4096n, 8, 4096n), { code: 'KV_DRIVER_LOST' });
  t.regex(device.misuses()[0]!.rule, /a kernel may use only memory that is mapped/);
  gpu.close();
  device.clearMisuses();
  device.close();
});

test('a kernel that cannot be launched is the driver\'s error, and nothing stays', (t) => {
  const device = openDevice();
  const gpu = new DenseKernels({ driver: device.driver });
  const memory = new DeviceFloats(device.driver);
  const input = memory.put(new Float32Array(4));
  for (const call of ['cuLaunchKernel'] as const satisfies readonly MockCall[]) {
    device.failCall(call);
    refuses(t, () => gpu.gate(input, input, 4, input), 'KV_DRIVER_CALL_FAILED', { call });
  }
  refuses(t, () => device.driver.close(), 'KV_DRIVER_IN_USE', { users: 2 });
  gpu.close();
  gpu.close();
  t.throws(() => gpu.gate(input, input, 4, input), { code: 'KV_CLOSED' });
  memory.close();
  device.assertNoLeaks();
  device.close();
});

test('on a host driver products are the CPU\'s', (t) => {
  const cpu = new DenseKernels();
  cpu.gate(Float32Array.of(0), Float32Array.of(1), 1, new Float32Array(1));
  cpu.close();
  t.throws(() => cpu.gate(Float32Array.of(0), Float32Array.of(1), 1, new Float32Array(1)), { code: 'KV_CLOSED' });
});
