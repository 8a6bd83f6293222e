// The truth test: whatever the layout, the chunks, the batch, and the way a prefix came (adopted, aliased, copied, forked, computed
// again after a preemption), logits are those of computing the whole text without a cache, and so are the tokens chosen.
// The comparison itself is LlamaWorld's, behind every chunk of every step. Models are shaped so that a row has about 32 tokens.

import test, { type ExecutionContext } from 'ava';

import { layoutKinds, type DenseKernelsOptions, type LayoutKind } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { fakeCublas } from '../helpers/fake-cublas.js';
import { layoutOf, pageBytes, randomText, shapeOf, vocabularyTokens } from '../helpers/llama-shapes.js';
import { LlamaWorld, type Member, type WorldOptions } from '../helpers/llama-world.js';
import { mostLikely } from '../helpers/logits.js';
import { randomLlama } from '../helpers/made-llama.js';
import { hasCompiler } from '../helpers/native-probe.js';
import { seedOf } from '../helpers/seed.js';
import { sampled, scale } from '../runner/tier.js';
import { slow } from '../runner/slow.js';

for (const layout of sampled(layoutKinds, 3)) {
  const seed = seedOf(`ways ${layout}`);

  test(`a prefix is right however it came, ${layout} (seed ${seed})`, async (t) => {
    await comeInAllWays(t, seed, layout);
  });

  for (const [streams, products] of [['immediate', 'our own'], ['manual', 'our own'], ['immediate', "cuBLAS's"]] as const) {
    const declare = products === 'our own' || hasCompiler ? slow('runs models on the simulated device') : test.skip;
    declare(`a prefix is right on a device however it came, ${layout}, ${streams} streams, products ${products} (seed ${seed})`, async (t) => {
      const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 28, hasGarbage: true, streams });
      const cublas = products === 'our own' ? 'off' : fakeCublas();
      await comeInAllWays(t, seed, layout, { driver: device.driver }, { cublas, workspaceBytes: pageBytes });
      device.assertNoLeaks();
      device.close();
    });
  }
}

/** One text is computed, others begin like it: beside it, in its slot after it, and forked from it. */
async function comeInAllWays(
  t: ExecutionContext, seed: number, layout: LayoutKind, options: WorldOptions = {}, dense: DenseKernelsOptions = {},
): Promise<void> {
  const random = new Random(seed);
  const world = new LlamaWorld(t, randomLlama(random, shapeOf(layout, 2, 4, 2)), { layout, ...options }, dense);
  const text = randomText(random, 100);
  const first = world.acquire(text);
  await world.finish(first);

  const second = world.acquire([...text.slice(0, 91), ...randomText(random, 20)]); // while the first lives: rows are shared
  t.true(world.cached.aliasedTokens + world.cached.copiedTokens >= 64, JSON.stringify(world.cached));
  await world.finish(second);

  const fork = world.fork(first); // both go on, differently
  world.append(first, mostLikely(first.logits!));
  world.append(fork, 7);
  await world.step([[first, 1], [fork, 1]], 'decode');
  world.append(first, 11);
  world.append(fork, 12);
  await world.step([[fork, 1], [first, 1]], 'decode');

  const { text: whole } = first;
  world.release(first);
  const again = world.acquire([...whole, ...randomText(random, 9)]); // the next turn of a conversation
  t.true(world.cached.adoptedTokens >= 64, JSON.stringify(world.cached));
  await world.finish(again);
  await world.finish(world.acquire(whole)); // the same prompt again, to its last token
  world.close();
}

for (let round = 0; round < 4 * scale; round += 1) {
  const seed = seedOf(`schedule ${round}`);

  test(`a random schedule computes what no cache computes, round ${round} (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
    const layout = pick(layoutKinds);
    const shape = shapeOf(layout, pick([1, 2, 3]), pick([1, 2, 4]), pick([1, 2, 3]));
    const world = new LlamaWorld(t, randomLlama(random, shape), {
      layout, slots: pick([3, 6]), memoryBudgetBytes: pick([9, 14, 60]) * layoutOf(layout, shape).rowBytes, mapper: pick(['background', 'off']),
    }, { threads: pick([1, 2, 3]) });
    const schedule = new Schedule(world, random);
    await t.notThrowsAsync(async () => {
      for (let step = 0; step < 60; step += 1) await schedule.turn();
    }, JSON.stringify({ ...shape, layout }));
    world.close();
  });
}

/** Random turns: requests arrive with new or known texts, compute in chunks, are forked, preempted, finished. */
class Schedule {
  readonly #world: LlamaWorld;
  readonly #random: Random;
  /** Texts seen so far: those of preempted and finished requests come again, or begin another. */
  readonly #texts: (readonly number[])[] = [];

  constructor(world: LlamaWorld, random: Random) {
    this.#world = world;
    this.#random = random;
  }

  async turn(): Promise<void> {
    const world = this.#world;
    const random = this.#random;
    const { slots } = world.cache.layout;
    if (world.members.length < slots && random.chance(0.4)) this.#arrive();
    for (const member of world.members.filter(({ logits }) => logits !== undefined)) {
      // Mostly the likeliest token, so that generation is tested too; now and then another, so that forks part.
      world.append(member, random.chance(0.8) ? mostLikely(member.logits!) : random.integer(vocabularyTokens));
      member.logits = undefined;
    }
    if (random.chance(0.15)) this.#leave();
    const waiting = world.members.filter((member) => world.remaining(member) > 0 && random.chance(0.8));
    if (waiting.length === 0) return;
    const isDecoding = random.chance(0.5);
    const chunks = waiting.map((member): readonly [Member, number] =>
      [member, isDecoding ? 1 : 1 + random.integer(Math.min(world.remaining(member), 60))]);
    if (!await world.step(chunks, isDecoding ? 'decode' : 'prefill')) this.#leave();
    const done = world.members.filter(({ logits }) => logits !== undefined);
    if (done.length > 0 && world.members.length < slots && random.chance(0.3)) this.#fork(done[random.integer(done.length)]!);
  }

  #arrive(): void {
    const random = this.#random;
    const known = this.#texts[random.integer(this.#texts.length)] ?? [];
    const kept = random.chance(0.3) ? known : known.slice(0, random.integer(known.length + 1));
    const text = [...kept.slice(0, 150), ...randomText(random, kept.length > 0 && random.chance(0.3) ? 0 : 1 + random.integer(50))];
    this.#attempt(() => this.#world.acquire(text));
    this.#texts.push(text);
  }

  #fork(member: Member): void {
    this.#attempt(() => this.#world.fork(member));
  }

  /** A request is done or preempted: its text may come again. */
  #leave(): void {
    const member = this.#world.members[this.#random.integer(this.#world.members.length)];
    if (member === undefined) return;
    this.#texts.push([...member.text]);
    this.#world.release(member);
  }

  /** A full cache is no failure of the test: a request is released. */
  #attempt(call: () => void): void {
    try {
      call();
    } catch (error) {
      if ((error as { code?: string }).code !== 'KV_OUT_OF_PAGES') throw error;
      this.#leave();
    }
  }
}
