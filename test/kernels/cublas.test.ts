// Products by cuBLAS, against a fake that multiplies in plain loops on the simulated device's memory: transpositions, leading
// dimensions, types, biases and chunks are right; each of its failures is an error with its status; nothing stays.

import test from 'ava';

import { DenseKernels, type RowDtype, type Weight } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { DeviceFloats } from '../helpers/device-floats.js';
import { failCublas, fakeCublas } from '../helpers/fake-cublas.js';
import { roundTo, toRows } from '../helpers/floats.js';
import { hasCompiler } from '../helpers/native-probe.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { scale } from '../runner/tier.js';
import { costly, slow } from '../runner/slow.js';

const dtypes: readonly RowDtype[] = ['float32', 'float16', 'bfloat16'];
const pageBytes = 65_536;
const cublasTest = hasCompiler ? test.serial : test.serial.skip; // serial: a fault is in the environment
const seed = seedOf('cublas');

const openDevice = (options = {}): MockDevice => new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 26, ...options });

test.afterEach.always(() => failCublas());

function randomFloats(random: Random, length: number, dtype: RowDtype = 'float32'): number[] {
  return Array.from({ length }, () => roundTo(dtype, 2 * random.next() - 1));
}

(hasCompiler ? slow('many products') : test.skip)(`products are those of plain sums over activations of the weight's type (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
  for (let round = 0; round < 25 * scale; round += 1) {
    const device = openDevice({ hasGarbage: true });
    const dense = new DenseKernels({ driver: device.driver, cublas: fakeCublas(), workspaceBytes: pageBytes });
    t.is(dense.target, 'cublas 12.8');
    const memory = new DeviceFloats(device.driver);
    // The workspace has 32,768 elements: the last is cut into several calls.
    const [rows, inputs] = pick([[5, 7], [9, 256], [40, 1], [70, 1000]] as const);
    const input = randomFloats(random, rows * inputs);
    const products = Array.from({ length: pick([1, 3]) }, () => {
      const [outputs, dtype, mode] = [pick([1, 5, 33]), pick(dtypes), pick(['add', 'replace'] as const)];
      const values = randomFloats(random, outputs * inputs, dtype);
      const bias = pick([undefined, Float32Array.from(randomFloats(random, outputs))]);
      const before = mode === 'add' ? Float32Array.from(randomFloats(random, rows * outputs)) : new Float32Array(rows * outputs).fill(NaN);
      const weight: Weight = { data: memory.put(toRows(dtype, values)), dtype, outputs, inputs };
      return { weight, values, bias, before, output: memory.put(before), mode };
    });
    dense.multiply(memory.put(Float32Array.from(input)), rows, ...products.map(({ weight, bias, output, mode }) => (
      { weight, bias: bias && memory.put(bias), output, mode })));
    for (const { weight: { dtype, outputs }, values, bias, before, output, mode } of products) {
      const actual = memory.read(output, rows * outputs);
      const rounded = input.map((value) => roundTo(dtype as RowDtype, value));
      const worst = actual.reduce((most, value, at) => {
        const [row, o] = [Math.floor(at / outputs), at % outputs];
        let sum = (mode === 'add' ? before[at]! : 0) + (bias?.[o] ?? 0);
        for (let i = 0; i < inputs; i += 1) sum += rounded[row * inputs + i]! * values[o * inputs + i]!;
        const difference = Math.abs(sum - value);
        return difference <= most ? most : difference; // NaN is the worst
      }, 0);
      t.true(worst < 1e-5, `round ${round}: ${rows} × ${inputs} → ${outputs}, ${dtype}, ${mode}: off by ${worst}`);
    }
    memory.close();
    dense.close();
    device.assertNoLeaks();
    device.close();
  }
});

(hasCompiler ? costly('first of a bundle, it is charged with what other files begin while they load').serial : test.serial.skip)('the input is narrowed once for all weights of a type, and our own kernel takes few rows and what cuBLAS cannot', (t) => {
  const launches = (computeCapability: number, dtype: RowDtype, workspaceBytes: number, inputs: number, rows = 5): number => {
    const device = openDevice({ computeCapability });
    const dense = new DenseKernels({ driver: device.driver, cublas: fakeCublas(), workspaceBytes });
    const memory = new DeviceFloats(device.driver);
    const weight: Weight = { data: memory.put(new Uint16Array(2 * inputs)), dtype, outputs: 2, inputs };
    const product = (): { weight: Weight; output: bigint } => ({ weight, output: memory.put(new Float32Array(2 * rows)) });
    dense.multiply(memory.put(new Float32Array(rows * inputs)), rows, product(), product(), product());
    const { cuLaunchKernel } = device.callCounts();
    memory.close();
    dense.close();
    device.assertNoLeaks();
    device.close();
    return cuLaunchKernel;
  };
  t.is(launches(90, 'bfloat16', pageBytes, 8), 1);
  t.is(launches(75, 'float16', pageBytes, 8), 1);
  t.is(launches(75, 'bfloat16', pageBytes, 8), 3, 'no bfloat16 before Ampere');
  t.is(launches(90, 'float16', 1, pageBytes / 2 + 1), 3, 'not one row fits the workspace');
  t.is(launches(90, 'float16', pageBytes, 8, 4), 3, 'four rows');
});

cublasTest('every failure of cuBLAS is an error with its status, and no handle stays', (t) => {
  const device = openDevice();
  const open = (): DenseKernels => new DenseKernels({ driver: device.driver, cublas: fakeCublas(), workspaceBytes: 1 });
  const failures = [
    ['cublasCreate_v2', 1, 'CUBLAS_STATUS_NOT_INITIALIZED'], ['cublasGetVersion_v2', 14, 'CUBLAS_STATUS_INTERNAL_ERROR'],
    ['cublasSetStream_v2', 7, 'CUBLAS_STATUS_INVALID_VALUE'], ['cublasSetWorkspace_v2', 7, 'CUBLAS_STATUS_INVALID_VALUE'],
  ] as const;
  const before = device.driver.memory();
  for (const [call, status, statusName] of [...failures, ...failures]) { // more often than there is room for handles
    failCublas(call, status);
    t.like(t.throws(open), { code: 'KV_DRIVER_CALL_FAILED', details: { call, status, statusName } });
  }
  failCublas();
  for (let nth = 1; nth <= 6; nth += 1) {
    device.failCall('cuMemCreate');
    refuses(t, open, 'KV_DRIVER_CALL_FAILED', { call: 'cuMemCreate' });
    device.clearFailures();
  }
  t.deepEqual(device.driver.memory(), before);
  const dense = open();
  const memory = new DeviceFloats(device.driver);
  const weight: Weight = { data: memory.put(Float32Array.of(2)), dtype: 'float32', outputs: 1, inputs: 1 };
  const [input, output] = [memory.put(Float32Array.of(3, 4, 5, 6, 7)), memory.put(new Float32Array(5))];
  failCublas('cublasGemmEx', 13);
  refuses(t, () => dense.multiply(input, 5, { weight, output }),
    'KV_DRIVER_CALL_FAILED', { call: 'cublasGemmEx', statusName: 'CUBLAS_STATUS_EXECUTION_FAILED' });
  failCublas();
  dense.multiply(input, 5, { weight, output });
  t.is(memory.read(output, 5)[4], 14);
  memory.close();
  dense.close();
  device.assertNoLeaks();
  device.close();
});

cublasTest('a library that is not there or not whole is refused by its path, and left aside where it is only looked for', (t) => {
  const device = openDevice();
  const open = (cublas: string): DenseKernels => new DenseKernels({ driver: device.driver, cublas });
  refuses(t, () => open('/nowhere/libcublas.so'), 'KV_CUBLAS_UNAVAILABLE', { missing: undefined });
  refuses(t, () => open(fakeCublas('without-gemm')), 'KV_CUBLAS_UNAVAILABLE', { missing: 'cublasGemmEx' });
  t.throws(() => open(''), { code: 'KV_INVALID_OPTION' });
  const dense = open('off');
  t.is(dense.target, 'sm_90');
  dense.close();
  device.assertNoLeaks();
  device.close();
});

cublasTest('when the device is lost, its handle is left alone', (t) => {
  const device = openDevice();
  const dense = new DenseKernels({ driver: device.driver, cublas: fakeCublas(), workspaceBytes: 1 });
  device.loseDevice();
  t.throws(() => device.driver.memory(), { code: 'KV_DRIVER_LOST' });
  const product = { weight: { data: 8n, dtype: 'float32', outputs: 1, inputs: 1 }, output: 8n } as const;
  t.throws(() => dense.multiply(8n, 1, product), { code: 'KV_DRIVER_LOST' });
  t.notThrows(() => dense.close());
  device.close();
});
