// The operator of onnxruntime's CUDA provider, called as the provider calls it by a fake onnxruntime
// (test/native/fake_onnxruntime.cc): the same passes as the operator of the CPU, on a GPU where there is one, else on the
// simulated device, which checks every launch and its memory.

import test, { type ExecutionContext } from 'ava';

import { Driver, KvCache, type RowDtype, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { attendable, KernelLayers } from '#internal/kernels/kernel-layers.js';
import { elements } from '#internal/onnx/graph.js';
import { OnnxSession } from '#internal/onnx/session.js';
import { DeviceFloats } from '../helpers/device-floats.js';
import { cudaDriver } from '../helpers/drivers.js';
import { fakeOnnxruntime } from '../helpers/fake-libcuda.js';
import { fromRows, toRows } from '../helpers/floats.js';
import { nativeOf } from '../helpers/native-of.js';
import { seedOf } from '../helpers/seed.js';
import { scaled } from '../runner/tier.js';

const [layers, heads, kvHeads, dim, valueDim, slots, maxTokens] = [2, 6, 2, 32, 24, 4, 400];
const sinks = Float32Array.from({ length: heads }, (_, head) => head / 3 - 1);
/** Of layer 1; layer 0 has none. */
const rules = 'scale=0.25 window=9 softcap=3';

/** A cache, a session with two nodes of the operator, and the memory of their rows, on one machine. */
class OperatorWorld {
  readonly #dtype: 'float32' | 'float16';
  readonly #driver: Driver;
  readonly #stream: bigint;
  readonly #cache: KvCache;
  readonly #session: OnnxSession;
  readonly #sequences: readonly Sequence[];

  private constructor(dtype: 'float32' | 'float16', driver: Driver, cache: KvCache, session: OnnxSession) {
    this.#dtype = dtype;
    this.#driver = driver;
    this.#stream = driver.kind === 'host' ? 0n : driver.acquireStream();
    this.#cache = cache;
    this.#session = session;
    this.#sequences = Array.from({ length: slots }, () => cache.acquire());
  }

  static async open(t: ExecutionContext, driver: Driver, dtype: 'float32' | 'float16', cacheDtype: RowDtype): Promise<OperatorWorld> {
    const pageBytes = driver.kind === 'cuda' ? 2 ** 21 : 65_536;
    const cache = new KvCache({
      model: { layers, kvHeads, headDim: dim, valueHeadDim: valueDim, dtype: cacheDtype }, driver, slots, maxTokens, pageBytes, headroomBytes: 0,
      memoryBudgetBytes: 64 * pageBytes, work: 'awaited',
    });
    t.teardown(() => { cache.close(); });
    const operator = dtype === 'float16' ? 'AttentionFloat16' : 'Attention';
    const node = (layer: number, more: string): string => `${operator} layer=${layer} num_heads=${heads} kv_num_heads=${kvHeads} packed=0 rotary=0 ${more}\n`;
    const session = await OnnxSession.open({
      library: fakeOnnxruntime(), folder: '', threads: 1, driver: driver.kind === 'host' ? undefined : driver,
      model: Buffer.from(node(0, 'scale=0 window=0 softcap=0') + node(1, rules)),
    });
    t.teardown(() => { session.close(); });
    return new OperatorWorld(dtype, driver, cache, session);
  }

  /** The stream that the provider has. */
  get stream(): bigint {
    return this.#stream;
  }

  /** New tokens of each sequence, which has room for them. */
  counts(random: Random): readonly number[] {
    return this.#sequences.map(({ length }) => Math.min(random.chance(0.5) ? 1 : random.integer(40), maxTokens - length));
  }

  /** One pass: `counts` new tokens of the sequences. Returns the outputs of both nodes, and what the session was asked for. */
  async pass(counts: readonly number[], random: Random): Promise<{ outputs: number[][]; journal: string }> {
    const batch = this.#cache.createBatch();
    const spans: number[] = [];
    let rows = 0;
    this.#sequences.forEach((sequence, index) => {
      const count = counts[index]!;
      if (count === 0) return;
      spans.push(sequence.slot, sequence.length, count, rows);
      rows += count;
      batch.add(sequence, count);
    });
    this.#cache.prepare(batch);
    const memory = new DeviceFloats(this.#driver, 2 ** 20);
    try {
      const result = await this.#run(memory, { spans, rows, random });
      this.#cache.commit(batch);
      return result;
    } finally {
      memory.close();
    }
  }

  async #run(
    memory: DeviceFloats, { spans, rows, random }: { readonly spans: readonly number[]; readonly rows: number; readonly random: Random },
  ): Promise<{ outputs: number[][]; journal: string }> {
    const dims = (width: number): readonly number[] => [1, rows, width];
    const inputs = new Map<string, readonly (bigint | number)[]>();
    [heads * dim, kvHeads * dim, kvHeads * valueDim].forEach((width, at) => {
      const values = Array.from({ length: rows * width }, () => Math.round(random.next() * 256) / 128 - 1);
      const address = memory.put(toRows(this.#dtype, values));
      for (const node of [0, 1]) inputs.set(`q${at}.${node}`, [address, ...dims(width)]);
    });
    inputs.set('q5.1', [memory.put(sinks), heads]);
    const width = heads * valueDim;
    const places = [0, 1].map((node) => {
      const address = memory.put(toRows(this.#dtype, new Array<number>(rows * width).fill(7)));
      inputs.set(`output.${node}`, [address, ...dims(width)]);
      return address;
    });
    inputs.set('stream', [this.#stream]);
    const [journal] = await this.#session.run({
      inputs: [...inputs].map(([name, numbers]) =>
        ({ name, type: elements.int64, dims: [numbers.length], data: BigInt64Array.from(numbers, (number) => BigInt.asIntN(64, BigInt(number))) })),
      outputs: [{ name: 'journal', type: elements.uint8, dims: [] }],
      pass: {
        layers: new KernelLayers(this.#cache, { queryHeads: heads }).numbers().layers, spans: Int32Array.from(spans),
        slots, maxTokens, cacheDtype: attendable.indexOf(this.#cache.tensors[0]!.dtype),
      },
    });
    if (this.#driver.kind !== 'host') nativeOf(this.#driver).synchronizeStream(this.#stream);
    const outputs = places.map((address) => fromRows(this.#dtype, memory.readInto(address, toRows(this.#dtype, new Array<number>(rows * width).fill(0)))));
    return { outputs, journal: Buffer.from(journal!.bytes).toString() };
  }
}

const simulated = (t: ExecutionContext, streams: 'immediate' | 'manual' = 'immediate'): MockDevice => {
  const device = new MockDevice({ granularityBytes: 65_536, memoryBytes: 2 ** 30, hasGarbage: true, streams });
  t.teardown(() => { device.close(); });
  return device;
};

/** A GPU where there is one, else the simulated device. */
function openDriver(t: ExecutionContext): Driver {
  if (cudaDriver.whyAbsent?.() !== undefined) return simulated(t).driver;
  const driver = Driver.open('cuda');
  t.teardown(() => { driver.close(); });
  return driver;
}

const tolerance = { float32: 1e-5, float16: 4e-3 } as const;

for (const dtype of ['float32', 'float16'] as const) {
  for (const cacheDtype of ['float32', 'bfloat16'] as const) {
    const seed = seedOf(`device operator ${dtype} ${cacheDtype}`);
    test(`passes of the device's operator are the CPU's: ${dtype} rows, a cache of ${cacheDtype} (seed ${seed})`, async (t) => {
      const driver = openDriver(t);
      const worlds = [await OperatorWorld.open(t, driver, dtype, cacheDtype), await OperatorWorld.open(t, Driver.open('host'), dtype, cacheDtype)];
      const random = new Random(seed);
      for (let round = 0; round < scaled(20); round += 1) {
        const counts = worlds[0]!.counts(random);
        if (counts.every((count) => count === 0)) continue;
        const [ours, cpu] = [await worlds[0]!.pass(counts, new Random(seed + round)), await worlds[1]!.pass(counts, new Random(seed + round))];
        for (const node of [0, 1]) {
          const worst = ours.outputs[node]!.reduce((most, value, at) => Math.max(most, Math.abs(value - cpu.outputs[node]![at]!)), 0);
          t.true(worst <= tolerance[dtype], `round ${round}, node ${node}: ${worst}`);
        }
      }
    });
  }
}

test('each node queues the new tokens, prompts and answers on the stream of the provider, and waits for nothing', async (t) => {
  const device = simulated(t);
  const world = await OperatorWorld.open(t, device.driver, 'float16', 'float16');
  const random = new Random(1);
  const { journal } = await world.pass([3, 1, 0, 2], random);
  const provider = `AttentionFloat16 on CUDAExecutionProvider\n`;
  t.is(journal, `CUDA device_id=0\n${provider.repeat(2)}${'its stream\n'.repeat(2)}`);
  const launches = device.journal().filter(({ call }) => call === 'cuLaunchKernel');
  t.deepEqual(launches.map(({ stream }) => stream), new Array<bigint>(6).fill(world.stream), 'append, prefill, decode, by node');
  const between = device.journal().filter(({ step }) => step > launches[0]!.step && step < launches.at(-1)!.step);
  t.deepEqual(between.filter(({ call }) => /Synchronize|Query|cuMem/.test(call)), []);
});

test('a launch that fails fails the run, by its name', async (t) => {
  const device = simulated(t);
  const world = await OperatorWorld.open(t, device.driver, 'float32', 'float32');
  const random = new Random(1);
  await world.pass([3, 1, 0, 2], random);
  device.failCall('cuLaunchKernel');
  const error = await t.throwsAsync(world.pass([1, 1, 1, 1], random));
  t.like(error, { code: 'KV_ONNX_FAILED' });
  t.regex(error.message, /cuLaunchKernel CUDA_ERROR/);
});

test('a graph that was written for the CPU is refused on a device', async (t) => {
  const { driver } = simulated(t);
  const model = Buffer.from('Attention layer=0 num_heads=2 kv_num_heads=2 packed=1 rotary=0 scale=0 window=0 softcap=0\n');
  const error = await t.throwsAsync(OnnxSession.open({ library: fakeOnnxruntime(), folder: '', threads: 1, driver, model }));
  t.like(error, { code: 'KV_ONNX_FAILED' });
  t.regex(error.message, /written for the CPU/);
});

test('a driver is not closed before the session that computes on its device', async (t) => {
  const device = simulated(t);
  const session = await OnnxSession.open({ library: fakeOnnxruntime(), folder: '', threads: 1, driver: device.driver, model: new Uint8Array(0) });
  t.throws(() => { device.driver.close(); }, { code: 'KV_DRIVER_IN_USE' });
  session.close();
  t.notThrows(() => { device.driver.close(); });
});
