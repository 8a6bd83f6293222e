// The kernels on host against plain attention in double precision: random shapes, layouts, types, lengths and threads.

import test from 'ava';

import { Driver, Kernels, KvCache, layoutKinds, type Instructions, type RowDtype } from 'virtual-kv';

import { native } from '#internal/device/native.js';
import { Random } from '#internal/base/random.js';
import { KernelWorld, type WorldOptions } from '../helpers/kernel-world.js';
import { randomRules } from '../helpers/random-rules.js';
import { hasCompiler, runProbe } from '../helpers/native-probe.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { scale } from '../runner/tier.js';

const dtypes: readonly RowDtype[] = ['float32', 'float16', 'bfloat16'];
const instructions = native().cpuInstructions as readonly Instructions[];

for (const vectors of instructions) {
  const seed = seedOf(`attention ${vectors}`);
  slow('random steps of random shapes')(`random steps of random shapes match plain attention, with ${vectors} (seed ${seed})`, (t) => {
    const random = new Random(seed);
    const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
    for (let round = 0; round < 25 * scale; round += 1) {
      const dim = pick([1, 3, 8, 13, 16, 32, 40, 64, 80, 128]);
      const [kvHeads, group] = [pick([1, 2, 3, 5]), pick([1, 1, 2, 3, 4, 5, 8])];
      const options: WorldOptions = {
        kvHeads, group, dim, valueDim: pick([dim, dim, 24]), rules: [{}, randomRules(random, kvHeads * group)],
        cacheDtype: pick(dtypes), rowDtype: pick(dtypes), layout: pick(layoutKinds),
        kernels: { threads: pick([1, 2, 3, 5]), instructions: vectors },
      };
      const driver = Driver.open('host');
      const world = new KernelWorld(t, driver, random, options);
      const about = `round ${round}, ${JSON.stringify(options)}`;
      const members = pick([1, 2, 4]);
      for (let index = 0; index < members; index += 1) world.acquire();
      t.notThrows(() => {
        world.step(Array.from({ length: members }, () => pick([0, 1, 2, 17, 65, 130])), { as: pick(['fastest', 'prefill']) });
        world.step(Array.from({ length: members }, () => pick([0, 1, 1, 1])), { through: pick(['batch', 'arrays']) });
        world.step(Array.from({ length: members }, () => pick([0, 1, 3, 64])), { through: pick(['batch', 'arrays']) });
        world.step(Array.from({ length: members }, () => 1));
      }, about);
      world.close();
      driver.close();
    }
  });
}

for (const vectors of instructions) {
  test(`what is no number in a token that a row sees makes its result no number, with ${vectors}`, (t) => {
    const [length, heads, group, dim] = [200, 2, 3, 32];
    const cache = new KvCache({
      model: { layers: 1, kvHeads: heads, headDim: dim, dtype: 'float32' }, driver: 'host', slots: 1, maxTokens: 512, memoryBudgetBytes: 2 ** 24,
    });
    const kernels = new Kernels({ cache, queryHeads: heads * group, threads: 3, instructions: vectors });
    const sequence = cache.acquire();
    const batch = cache.createBatch();
    batch.add(sequence, length);
    cache.prepare(batch);
    const arrays = { slots: Int32Array.of(sequence.slot), lengths: Int32Array.of(0), tokens: Int32Array.of(length) };
    const random = new Random(1);
    const numbers = (count: number): Float32Array => Float32Array.from({ length: count }, () => 2 * random.next() - 1);
    kernels.append(0, arrays, numbers(length * heads * dim), numbers(length * heads * dim));
    const queries = numbers(heads * group * dim);
    const lastRow = { ...arrays, lengths: Int32Array.of(length - 1), tokens: Int32Array.of(1) };
    const output = new Float32Array(queries.length);
    const tensors = cache.layer(0);
    for (const part of ['key', 'value'] as const) {
      const { strides } = tensors[part];
      const view = tensors[part].view(sequence) as Float32Array;
      for (const token of [0, 5, 63, 64, 127, length - 1]) {
        const at = token * strides.token + strides.head + 7; // in one element of the second head
        const before = view[at]!;
        for (const wrong of [Number.NaN, before]) {
          view[at] = wrong;
          for (const attend of ['decodeAttention', 'prefillAttention'] as const) {
            kernels[attend](0, lastRow, queries, output);
            const where = `${attend}, ${wrong} in the ${part} of token ${token}`;
            t.false(output.subarray(0, group * dim).some(Number.isNaN), `${where}: the first head`);
            for (let head = group; head < 2 * group; head += 1) {
              const own = output.subarray(head * dim, (head + 1) * dim);
              const isSeen = part === 'key' ? own.every(Number.isNaN) : Number.isNaN(own[7]);
              t.is(isSeen, Number.isNaN(wrong), `${where}: head ${head}`);
            }
          }
        }
      }
    }
    cache.commit(batch);
    kernels.close();
    cache.close();
  });
}

const probeSeed = seedOf('attention of the CPU');
(hasCompiler ? slow('random commands for every instruction set') : test.skip)(
  `nothing is loaded that no row sees, NaN there reaches no result, and a prompt in two passes has the bits of one (seed ${probeSeed})`,
  (t) => {
    const lines = runProbe('cpu_attention_probe', [String(probeSeed), String(Math.max(4, Math.round(40 * scale)))]);
    t.is(lines.length, 2 * instructions.length);
    for (const line of lines) t.regex(line, /^\w+_(decode|prefill) \d+ ok$/);
  },
);

for (const length of [0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 255, 511]) {
  test(`the first token after ${length} is right, decoded and prefilled`, (t) => {
    const driver = Driver.open('host');
    for (const as of ['fastest', 'prefill'] as const) {
      const world = new KernelWorld(t, driver, new Random(length), { kvHeads: 2, group: 2, dim: 64, cacheDtype: 'bfloat16' });
      world.acquire();
      if (length > 0) world.step([length]);
      world.step([1], { as });
      t.deepEqual(world.lengths, [length + 1]);
      world.close();
    }
    driver.close();
  });
}

for (const threads of [1, 2, 3, 4, 8]) {
  slow('random steps of random shapes')(`one long sequence is split over ${threads} threads and merged to the same answer`, (t) => {
    const driver = Driver.open('host');
    const world = new KernelWorld(t, driver, new Random(threads), {
      layers: 1, kvHeads: 2, group: 4, dim: 32, maxTokens: 4096, kernels: { threads },
    });
    world.acquire();
    world.acquire();
    world.step([2500, 40]);
    world.step([1, 1]);
    world.step([1]);
    world.close();
    driver.close();
  });
}

test('scores that would overflow without the running maximum do not', (t) => {
  const driver = Driver.open('host');
  const world = new KernelWorld(t, driver, new Random(7), {
    kvHeads: 1, group: 2, dim: 16, spread: 30, kernels: { scale: 2 },
  });
  world.acquire();
  world.step([100]);
  for (let token = 0; token < 20; token += 1) world.step([1]);
  world.close();
  driver.close();
});

test('more query heads share a KV head than a block of queries has rows', (t) => {
  const driver = Driver.open('host');
  const world = new KernelWorld(t, driver, new Random(71), { kvHeads: 1, group: 71, dim: 64, cacheDtype: 'float16' });
  world.acquire();
  world.step([33]);
  world.step([1]);
  world.close();
  driver.close();
});
