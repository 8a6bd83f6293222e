// Which text the device has with the eviction policy `importance`: what selections read of is brought there, whole and exact, where it scores more than
// what goes for it; every reader gets the same bytes; and nothing that goes wrong with it costs a request anything.

import test, { type ExecutionContext } from 'ava';

import { hostTier, importance, lru, type EvictionPolicy, type EvictionPolicyFactory, type Sequence, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import { dropFromDevice, turn } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { deadlineMs } from '../helpers/patient.js';
import { seedOf } from '../helpers/seed.js';
import { MiB, SelectionWorld, sizes, type SelectionWorldOptions } from './selection-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('device placement');
const blockTokens = 16;
const first: TokenSelector = { name: 'first', looksAt: 'nothing', select: ({ count }) => Int32Array.from({ length: count }, (_, token) => token) };

/** A tier whose reads wait until they are let through. */
class WaitingTier extends PlainTier {
  isWaiting = false;
  reads = 0;
  /** Reads that waited at the same time. */
  most = 0;
  readonly #held: (() => void)[] = [];

  override async get(...parameters: Parameters<PlainTier['get']>): ReturnType<PlainTier['get']> {
    this.reads += 1;
    if (this.isWaiting) {
      await new Promise<void>((resolve) => {
        this.#held.push(resolve);
        this.most = Math.max(this.most, this.#held.length);
      });
    }
    return super.get(...parameters);
  }

  letThrough(): void {
    for (const go of this.#held.splice(0)) go();
  }
}

/** Of whole blocks, and one token that is new. */
const textOf = (letter: number, blocks = 1): Int32Array =>
  Int32Array.from({ length: blocks * blockTokens + 1 }, (_, at) => (letter * 7 + at * 3) % sizes.vocabularyTokens);
const [a, b] = [textOf(1), textOf(2)];

/** A world whose tier has the texts, and whose device has nothing. */
async function open(t: ExecutionContext, texts: readonly Int32Array[], options: SelectionWorldOptions): Promise<SelectionWorld> {
  const world = new SelectionWorld(t, new Random(seed), { tiers: [hostTier({ bytes: 16 * MiB })], policy: importance(), ...options });
  await world.cache.prefixes.tiers!.ready();
  for (const text of texts) await world.store(text.subarray(0, text.length - 1));
  return world;
}

/** A request that is given so many tokens of each block in every layer that is not on the device. */
async function read(world: SelectionWorld, text: Int32Array, tokens: number): Promise<void> {
  const sequence = await world.lossy(text, { selector: first, ratio: tokens * Math.floor(text.length / blockTokens) / (text.length - 1) });
  await world.finish(sequence, text);
  sequence.release();
  await world.cache.prefixes.tiers!.settled();
}

const onDevice = (world: SelectionWorld, ...texts: Int32Array[]): number[] => texts.map((text) => world.cache.prefixes.lookup({ tokens: text }).cachedTokens);
const raised = (world: SelectionWorld): number => world.cache.prefixes.tiers!.metrics().raisedTokens;

test('text of two important tokens and two uses has the only room on the device before one with one and three; two more, and they change', async (t) => {
  for (const important of [1, 2]) {
    const world = await open(t, [a, b], { poolRows: 1 }); // each was computed once
    (await world.lossy(a, { selector: first, ratio: 0.25 })).release(); // a use that chose nothing
    await read(world, a, 1);
    t.deepEqual(onDevice(world, a, b), [16, 0], 'there is room');
    await read(world, b, important);
    t.deepEqual(onDevice(world, a, b), important === 1 ? [16, 0] : [0, 16], '1 × 2 is not above 1 × 3, 2 × 2 is');
    if (important === 2) {
      await read(world, a, 1);
      t.deepEqual(onDevice(world, a, b), [0, 16], '1 × 4 is not above 2 × 2');
      await read(world, a, 1);
      t.deepEqual(onDevice(world, a, b), [16, 0], '1 × 5 is');
    }
    t.is(raised(world), (important === 1 ? 1 : 3) * blockTokens);
    await world.close();
  }
});

test('text comes block by block, where memory is free, and is found exact behind it', async (t) => {
  const text = textOf(3, 6);
  const world = await open(t, [text], {});
  const exact = world.plain.logits(text).at(-1)!;
  await read(world, text, 4);
  t.deepEqual(onDevice(world, text), [6 * blockTokens]);
  t.is(raised(world), 6 * blockTokens);
  const { opened } = world.cache.prefixes.tiers as unknown as { readonly opened: readonly OpenTier[] };
  const { uses } = opened[0]!.contents.blocks().next().value!;
  t.is(uses, 2, 'to bring it is no use of it');
  const sequence = world.cache.acquire({ tokens: text });
  t.is(sequence.length, 6 * blockTokens);
  t.false(sequence.isLossy);
  for (const [token, logit] of (await world.finish(sequence, text)).entries()) t.true(Math.abs(logit - exact[token]!) < 1e-4);
  sequence.release();
  t.is(world.cache.prefixes.tiers!.metrics().prefetches.complete, 0, 'it is no hint of a user');
  await world.close();
});

test('an end that goes as soon as it has come, since all before it is worth less, comes once', async (t) => {
  const [rowTokens, text] = [256, textOf(5, 20)];
  const last: TokenSelector = { name: 'last', looksAt: 'nothing', select: ({ tokens, count }) => Int32Array.from({ length: count }, (_, at) => tokens - count + at) };
  const world = await open(t, [], { poolRows: 1 });
  const [computed, holder] = [0, 1].map(() => world.cache.acquire({ tokens: text.subarray(0, text.length - 1) })) as [Sequence, Sequence];
  for (const sequence of [computed, holder]) await world.finish(sequence, text.subarray(0, text.length - 1));
  computed.release();
  await world.cache.prefixes.tiers!.settled();
  holder.release();
  dropFromDevice(world.cache);
  const counts: number[] = [];
  for (let use = 0; use < 3; use += 1) {
    const sequence = await world.lossy(text, { selector: last, ratio: 0.2 });
    await world.finish(sequence, text);
    sequence.release();
    await world.cache.prefixes.tiers!.settled();
    t.deepEqual(onDevice(world, text), [rowTokens]);
    counts.push(raised(world));
  }
  t.deepEqual(counts, new Array(3).fill(rowTokens + blockTokens));
  await world.close();
});

const others: readonly (readonly [string, SelectionWorldOptions])[] = [
  ['a policy that does not say what text is worth', { policy: lru() }],
  ['important tokens by a function of the user', { policy: importance({ importantTokens: ({ from, to }) => to - from }) }],
  ['bounds for tenants, by which other text goes', { tenantRows: 8 }],
];
for (const [title, options] of others) {
  test(`nothing is brought but for requests with ${title}`, async (t) => {
    const world = await open(t, [a], options);
    await read(world, a, 4);
    t.deepEqual(onDevice(world, a), [0]);
    t.is(raised(world), 0);
    await world.close();
  });
}

/** The policy, with another answer to whether text is worth room. */
const saying = (isWorthRoom: EvictionPolicy['isWorthRoom']): EvictionPolicyFactory => (context) => Object.assign(lru()(context), { isWorthRoom });

test('a policy of the user says what is worth room, and is told of the text', async (t) => {
  const told: unknown[] = [];
  const world = await open(t, [a, b], { poolRows: 1, policy: saying((text) => told.push({ ...text }) > 1) });
  await read(world, a, 4);
  t.deepEqual(told, [], 'there is room');
  await read(world, b, 4);
  await read(world, b, 8);
  t.deepEqual(told, [{ tokens: 16, chosenTokens: 4, uses: 2 }, { tokens: 16, chosenTokens: 6, uses: 3 }]);
  t.deepEqual(onDevice(world, a, b), [0, 16]);
  await world.close();
});

test('a policy whose answer is none, or throws, is replaced once, and no request notices', async (t) => {
  for (const wrong of [() => 1, () => undefined, () => { throw new Error('mine'); }] as unknown as NonNullable<EvictionPolicy['isWorthRoom']>[]) {
    const world = await open(t, [a, b], { poolRows: 1, policy: saying(wrong) });
    for (const text of [a, b, b]) await read(world, text, 4);
    t.is(world.cache.metrics.lateErrors, 1);
    t.is(raised(world), blockTokens);
    await world.close();
  }
});

test('a cache that is closed or reset while text is brought takes no harm', async (t) => {
  for (const end of ['close', 'reset', 'closeTiers'] as const) {
    const text = textOf(4, 20);
    const world = await open(t, [text], {});
    const sequence = await world.lossy(text, { selector: first, ratio: 0.25 });
    await world.finish(sequence, text);
    sequence.release();
    if (end === 'reset') {
      world.cache.prefixes.reset({ preempt: true });
      await world.cache.prefixes.tiers!.settled();
      t.deepEqual(onDevice(world, text), [0]);
    } else if (end === 'closeTiers') {
      await world.cache.prefixes.tiers!.close();
    }
    await world.close();
  }
});

test('of a block with whose start alone the text agrees that start is brought', async (t) => {
  const text = textOf(7, 3);
  const world = await open(t, [text], {});
  const parting = Int32Array.of(...text.subarray(0, 24), ...textOf(9, 1));
  const sequence = await world.lossy(parting, { selector: first, ratio: 0.5 });
  await world.finish(sequence, parting);
  sequence.release();
  await world.cache.prefixes.tiers!.settled();
  t.is(raised(world), 24);
  t.deepEqual(onDevice(world, text, parting), [24, 24]);
  await world.close();
});

test('text of an old namespace is brought no more', async (t) => {
  const text = textOf(6, 6);
  const world = await open(t, [text], {});
  const sequence = await world.lossy(text, { selector: first, ratio: 0.25 });
  world.cache.prefixes.setNamespace('new weights');
  await world.finish(sequence, text);
  sequence.release();
  await world.cache.prefixes.tiers!.settled();
  t.is(raised(world), 0);
  await world.close();
});

test('requests for text that is being brought get it as fast as without that, and what is brought makes way for others', async (t) => {
  const slow = new WaitingTier('slow');
  const world = await open(t, [], { tiers: [slow] });
  const [text, other] = [textOf(6, 20), textOf(8, 20)];
  for (const one of [text, other]) await world.store(one.subarray(0, one.length - 1));
  slow.isWaiting = true;
  const serve = async (work: Promise<unknown>): Promise<void> => {
    let isOver = false;
    void work.finally(() => { isOver = true; });
    while (!isOver) {
      await turn();
      slow.letThrough();
    }
    await work;
  };
  const sequence = await world.lossy(text, { selector: first, ratio: 0.25 });
  await serve(world.finish(sequence, text));
  sequence.release();
  slow.most = 0;
  const asked = [world.cache.prefixes.promote({ tokens: text, deadlineMs }), world.cache.prefixes.prefetch({ tokens: other })];
  await serve(Promise.all(asked));
  t.true(slow.most >= 16, `${slow.most} blocks were read at a time`);
  t.deepEqual(onDevice(world, text, other), [20 * blockTokens, 20 * blockTokens]);
  slow.isWaiting = false;
  slow.letThrough();
  await world.close();
});

test('closing the tiers does not wait for text that is brought', async (t) => {
  const slow = new WaitingTier('slow');
  const text = textOf(6, 20);
  const world = await open(t, [], { tiers: [slow] });
  await world.store(text.subarray(0, text.length - 1));
  const sequence = await world.lossy(text, { selector: first, ratio: 0.25 });
  await world.finish(sequence, text);
  slow.isWaiting = true;
  sequence.release();
  await turn();
  const { reads } = slow;
  const closing = world.cache.prefixes.tiers!.close();
  await turn();
  slow.isWaiting = false;
  slow.letThrough();
  await closing;
  t.true(slow.reads <= reads + 1, `${slow.reads - reads} more reads`);
  await world.close();
});

slow('many texts that come and go')(`exact requests get exact bytes while text comes and goes by score (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const texts = Array.from({ length: 8 }, (_, letter) => textOf(letter + 1, 1 + letter % 4));
  const world = await open(t, texts, { poolRows: 3, slots: 3 });
  const exact = texts.map((text) => world.plain.logits(text).at(-1)!);
  for (let turn = 0; turn < 300; turn += 1) { // text is brought beside the next requests
    const letter = turn < 100 ? random.integer(3) : 3 + random.integer(5); // other texts become popular
    const text = texts[letter]!;
    const isExact = random.chance(0.3);
    const ratio = random.chance(0.5) ? 1 : 0.25;
    const sequence = isExact ? world.cache.acquire({ tokens: text }) : await world.lossy(text, { selector: first, ratio });
    const mustAgree = !sequence.isLossy || ratio === 1;
    const logits = await world.finish(sequence, text);
    sequence.release();
    if (mustAgree) for (const [token, logit] of logits.entries()) t.true(Math.abs(logit - exact[letter]![token]!) < 1e-4, `turn ${turn}`);
  }
  await world.cache.prefixes.tiers!.settled();
  t.log({ raised: raised(world) });
  t.true(raised(world) > 8 * blockTokens);
  await world.close();
});
