// Requests over tiers, through a scheduler and the reference engine: time to first token of a long prefix that lies on a disk, or in a tier that is
// deliberately slow or stalls, against computing it; and what storing text adds to computing it, in CPU time and to the steps of running answers. A
// small model of random weights; storing with one of SmolLM2-360M's shape, so that a token's K and V are as large beside its computing as a model's.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { diskTier, hostTier, KvCache, OnlineScheduler, type Tier } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import type { PrefixIndex } from '#internal/prefix/prefix-index.js';
import { randomLlama, writeLlama } from '../helpers/made-llama.js';
import { format, median, type BenchResult } from './measure.js';
import { openZeroModel } from './zero-model.js';

const sizes = { layers: 4, hidden: 256, intermediate: 704, queryHeads: 8, kvHeads: 4, headDim: 32, vocabularyTokens: 512 };
const prefixTokens = 2000;
const rounds = Number(process.env['VKV_BENCH_ROUNDS'] ?? 5);
const diskGoal = 5;
const slowGoal = 1.1;
const storingGoal = 0.03;

class Served {
  readonly cache: KvCache;
  readonly scheduler: OnlineScheduler;
  readonly #engine: LlamaEngine;

  constructor(model: LlamaModel, tiers: readonly Tier[] | undefined) {
    this.cache = new KvCache({
      model: model.shape(), slots: 4, maxTokens: 4096, memoryBudgetBytes: 2 ** 28, driver: 'host',
      prefixCache: tiers === undefined ? {} : { tiers, modelId: 'bench' },
    });
    this.#engine = new LlamaEngine({ model, cache: this.cache });
    this.scheduler = new OnlineScheduler({ cache: this.cache, engine: this.#engine });
  }

  /** Milliseconds until a request of `tokens` new tokens is answered. */
  async serve(prompt: Int32Array, tokens = 1): Promise<number> {
    const began = performance.now();
    await this.scheduler.submit({ tokens: prompt, maxNewTokens: tokens }).result;
    return performance.now() - began;
  }

  /** All text is in the tiers alone. */
  async demote(): Promise<void> {
    await this.cache.prefixes.tiers?.settled();
    (this.cache.prefixes as unknown as { readonly index: PrefixIndex }).index.clear();
    this.cache.counts();
  }

  async close(): Promise<void> {
    await this.scheduler.close();
    this.#engine.close();
    await this.cache.prefixes.tiers?.close();
    this.cache.close();
  }
}

function promptOf(random: Random, tokens = prefixTokens): Int32Array {
  return Int32Array.from({ length: tokens }, () => random.integer(sizes.vocabularyTokens));
}

/** A tier, each read of which takes as much longer as `delayMs` says. */
function slowed(inner: Tier, delayMs: () => number): Tier {
  return {
    name: 'slow', isLasting: inner.isLasting, takesOnlyWholeBlocks: inner.takesOnlyWholeBlocks, capacityBytes: inner.capacityBytes,
    open: (context) => inner.open(context), put: (record, payload) => inner.put(record, payload), remove: (keys) => inner.remove(keys),
    statistics: () => inner.statistics(), close: () => inner.close(),
    get: async (key, payload, signal) => {
      await sleep(delayMs(), undefined, { signal }).catch(() => { /* it is wanted no more */ });
      return signal?.aborted === true ? { isFound: false, reason: 'timeout' } : inner.get(key, payload, signal);
    },
  };
}

/** Opens a tier of its own for each cache, and forgets it. */
type MakeTier = () => Tier;
const inMemory: MakeTier = () => hostTier({ bytes: 2 ** 28 });

/** By round: how long a prefix took when it was computed, and when tiers had it. In the first one nothing is known of the tier. */
async function timesToFirstToken(model: LlamaModel, tier: Tier, rounds: number, onRound?: () => void): Promise<{ readonly computed: number[]; readonly found: number[] }> {
  const served = new Served(model, [tier]);
  await served.cache.prefixes.tiers!.ready();
  const random = new Random(5);
  await served.serve(promptOf(random)); // warm
  const [computed, found]: [number[], number[]] = [[], []];
  for (let round = 0; round < rounds; round += 1) {
    const prompt = promptOf(random);
    computed.push(await served.serve(prompt));
    await served.demote();
    found.push(await served.serve(prompt));
    await served.demote();
    onRound?.();
  }
  await served.close();
  return { computed, found };
}

async function fromDisk(model: LlamaModel): Promise<BenchResult> {
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-requests-'));
  try {
    const { computed, found } = await timesToFirstToken(model, diskTier({ directory, bytes: 2 ** 30, admit: 'all', durability: 'none' }), rounds);
    const times = median(computed.map((ms, round) => ms / found[round]!));
    return {
      name: `first token of a prompt of ${format(prefixTokens, 0)} tokens that a disk has, reference engine`,
      value: `${format(median(found))} ms`,
      against: `${format(times)} × faster than computing it (goal ${diskGoal} ×); the first request, before the disk is known, ${format(computed[0]! / found[0]!)} ×`,
      isGoalMet: times >= diskGoal,
      numbers: { milliseconds: median(found), times },
    };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** By round: a request's time over that of computing, the median of all rounds, where a tier's reads take `delay` times as long as that. */
async function ratiosFrom(model: LlamaModel, delay: (round: number) => number, rounds: number, make = inMemory): Promise<number[]> {
  const probe = new Served(model, undefined);
  await probe.serve(promptOf(new Random(5))); // warm
  const computing = await probe.serve(promptOf(new Random(6)));
  await probe.close();
  let round = 0;
  const { computed, found } = await timesToFirstToken(model, slowed(make(), () => computing * delay(round)), rounds, () => round += 1);
  return found.map((ms) => ms / median(computed));
}

/** Reads that take five times as long as computing: neither the first request, before anything is known of the tier, may wait for them, nor those after it. */
async function fromSlowTier(model: LlamaModel, what: string, make?: MakeTier): Promise<BenchResult> {
  const after = median((await ratiosFrom(model, () => 5, 1 + rounds, make)).slice(1));
  const firsts: number[] = [];
  for (let round = 0; round < rounds; round += 1) firsts.push(...await ratiosFrom(model, () => 5, 1, make));
  const first = median(firsts);
  return {
    name: `the same, from ${what} five times slower than computing`,
    value: `${format(100 * after, 0)} % of the time of computing it`,
    against: `goal ≤ ${format(100 * slowGoal, 0)} %; the first request, before the tier is known, ${format(100 * first, 0)} %`,
    isGoalMet: after <= slowGoal && first <= slowGoal,
    numbers: { ratio: after, first },
  };
}

async function fromSlowDisk(model: LlamaModel): Promise<BenchResult> {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-bench-requests-'));
  try {
    return await fromSlowTier(model, 'a disk that is made',
      () => diskTier({ directory: mkdtempSync(path.join(folder, 'disk-')), bytes: 2 ** 30, admit: 'all', durability: 'none' }));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Reads that take as long as computing. */
async function fromEvenTier(model: LlamaModel): Promise<BenchResult> {
  const ratio = median((await ratiosFrom(model, () => 1, 1 + 2 * rounds)).slice(1));
  return {
    name: 'the same, from a tier that is as slow as computing', value: `${format(100 * ratio, 0)} % of the time of computing it`,
    against: `goal ≤ ${format(100 * slowGoal, 0)} %`, isGoalMet: ratio <= slowGoal, numbers: { ratio },
  };
}

/** A tier that was fast, and whose reads then take twenty times as long as computing. */
async function fromStalledTier(model: LlamaModel): Promise<BenchResult> {
  const fastRounds = 4;
  const ratios: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    ratios.push((await ratiosFrom(model, (at) => (at < fastRounds ? 0 : 20), fastRounds + 1))[fastRounds]!);
  }
  const ratio = median(ratios);
  return {
    name: 'the same, from a tier that was fast and stalls', value: `${format(100 * ratio, 0)} % of the time of computing it`,
    against: `goal ≤ ${format(100 * slowGoal, 0)} %`, isGoalMet: ratio <= slowGoal, numbers: { ratio },
  };
}

/** A prompt and an answer, with a tier that stores both and without one, in turns: the least time of each, which others disturb least. */
async function storing(): Promise<BenchResult> {
  const model = openZeroModel();
  const [plain, tiered] = [new Served(model, undefined), new Served(model, [hostTier({ bytes: 2 ** 28 })])];
  await tiered.cache.prefixes.tiers!.ready();
  const random = new Random(7);
  const cpuOf = async (served: Served): Promise<number> => {
    const prompt = promptOf(random, 64);
    const before = process.cpuUsage();
    await served.serve(prompt, 128);
    await served.cache.prefixes.tiers?.settled();
    const { user, system } = process.cpuUsage(before);
    return user + system;
  };
  const times = new Map<Served, number>([[plain, Infinity], [tiered, Infinity]]);
  for (const served of times.keys()) await cpuOf(served);
  for (let round = 0; round < rounds; round += 1) {
    for (const served of round % 2 === 0 ? [plain, tiered] : [tiered, plain]) times.set(served, Math.min(times.get(served)!, await cpuOf(served)));
  }
  for (const served of times.keys()) await served.close();
  const more = times.get(tiered)! / times.get(plain)! - 1;
  return {
    name: 'a prompt of 64 tokens and 128 decoded ones whose text is stored in host memory, the shape of SmolLM2 360M, CPU time',
    value: `${format(100 * (1 + more), 1)} % of what it is without tiers`,
    against: `goal < ${format(100 * (1 + storingGoal), 0)} %`,
    isGoalMet: more < storingGoal,
    numbers: { more },
  };
}

/**
 * Milliseconds of each decoding step of the last of four requests, behind its first token. The others end meanwhile, one after the other, and their text
 * is stored: as many tokens as requests of this kind bring.
 */
async function decodingSteps({ cache, scheduler }: Served, random: Random): Promise<number[]> {
  const requests = [48, 80, 112, 128].map((maxNewTokens) => scheduler.submit({ tokens: promptOf(random, 512), maxNewTokens }));
  const others = requests.slice(0, -1).map(({ result }) => result);
  const steps: number[] = [];
  let last: number | undefined;
  for await (const _token of requests.at(-1)!) {
    const now = performance.now();
    if (last !== undefined) steps.push(now - last);
    last = now;
  }
  await Promise.all(others);
  await cache.prefixes.tiers?.settled(); // what is left to store is not in the other's turn
  return steps;
}

/** Steps while finished text is stored, and without tiers, in turns. */
async function storingBesideSteps(): Promise<BenchResult> {
  const model = openZeroModel();
  const [plain, tiered] = [new Served(model, undefined), new Served(model, [hostTier({ bytes: 2 ** 28 })])];
  await tiered.cache.prefixes.tiers!.ready();
  const random = new Random(8);
  for (const served of [plain, tiered]) await decodingSteps(served, random); // warm
  const mean = (steps: readonly number[]): number => steps.reduce((sum, step) => sum + step, 0) / steps.length;
  const all = new Map<Served, number[]>([[plain, []], [tiered, []]]);
  const ratios: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const means = new Map<Served, number>();
    for (const served of round % 2 === 0 ? [plain, tiered] : [tiered, plain]) {
      const steps = await decodingSteps(served, random);
      all.get(served)!.push(...steps);
      means.set(served, mean(steps));
    }
    ratios.push(means.get(tiered)! / means.get(plain)!);
  }
  const { tiers: [host], droppedTexts } = tiered.cache.prefixes.tiers!.metrics();
  for (const served of all.keys()) await served.close();
  const texts = 4 * (rounds + 1);
  if (droppedTexts > 0 || host!.storedBlocks < texts) throw new Error(`${host!.storedBlocks} blocks of ${texts} texts were stored, ${droppedTexts} texts dropped`);
  const more = median(ratios) - 1;
  const medians = [plain, tiered].map((served) => median(all.get(served)!));
  return {
    name: 'a decoding step of a request while three others end, whose text, 1,776 tokens, is stored in host memory, the shape of SmolLM2 360M, by the clock',
    value: `${format(100 * (1 + more), 1)} % of one without tiers`,
    against: `goal < ${format(100 * (1 + storingGoal), 0)} %; medians of all steps ${format(medians[1]!, 2)} and ${format(medians[0]!, 2)} ms`,
    isGoalMet: more < storingGoal,
    numbers: { more, plainMs: medians[0]!, tieredMs: medians[1]! },
  };
}

export async function tierRequests(): Promise<BenchResult[]> {
  const folder = writeLlama(randomLlama(new Random(4), sizes));
  try {
    const model = new LlamaModel(folder);
    return [await fromDisk(model), await fromSlowTier(model, 'a tier'), await fromSlowDisk(model), await fromEvenTier(model), await fromStalledTier(model), await storing(), await storingBesideSteps()];
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

if (require.main === module) {
  void tierRequests().then((results) => { for (const { name, value, against } of results) console.log(`${name}: ${value}; ${against}`); });
}
