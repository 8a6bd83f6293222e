// The contract of an engine: the package's own passes it, and so does a small one in plain JavaScript; each rule is named where
// an engine breaks only that one.

import test from 'ava';

import { KvCache, layoutKinds, type Engine, type EngineOutput, type EnginePass, type LayoutKind, type TensorView } from 'virtual-kv';
import { engineContract, type EngineContractPlace } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { randomLlama, removeFolder, writeLlama } from '../helpers/made-llama.js';
import { slow } from '../runner/slow.js';
import { sampled } from '../runner/tier.js';

const [LAYERS, HEADS, DIM, VOCABULARY] = [2, 2, 4, 11];
const titles = engineContract(() => { throw new Error('not called'); }).map(({ title }) => title);

/** What an engine does wrong, by the rule that it breaks. */
const flaws = {
  'it answers with numbers for each sequence of a pass that is read': 'is not ready for a first token',
  'it writes K and V of each new token, in each head of each tensor': 'leaves a head out',
  'it reads no new token before it has written it': 'reads before it writes',
  'it reads nothing behind the new tokens': 'reads past the end',
  'it changes no token before the new ones': 'rounds what is old',
  'it writes nothing behind the new tokens, and in no other slot': 'writes past the end',
  'it computes a prompt in chunks as it does whole': 'forgets the end of a second block',
  'it decodes a token as it computes the last one of a prompt': 'decodes otherwise',
  'it computes a sequence in a batch as it does alone': 'mixes up a batch',
  'it goes on from tokens that another sequence has computed': 'counts what it computed itself',
  'it knows nothing of the sequence that had a slot before': 'remembers long texts',
} as const satisfies Readonly<Record<string, string>>;
type Flaw = (typeof flaws)[keyof typeof flaws] | 'ignores strides';

/** One attention over all layers and heads, straight over the cache's memory. */
class SmallEngine implements Engine {
  readonly vocabularyTokens = VOCABULARY;
  readonly #cache: KvCache;
  readonly #flaw: Flaw | undefined;
  /** By slot: tokens that this engine has computed there, and those of the slot's last sequence. */
  readonly #computed = new Map<number, number>();
  readonly #before = new Map<number, number>();

  constructor(cache: KvCache, flaw: Flaw | undefined) {
    this.#cache = cache;
    this.#flaw = flaw;
  }

  prefill(pass: EnginePass): EngineOutput {
    const logits = new Float32Array(pass.length * VOCABULARY);
    for (let index = 0; index < pass.length; index += 1) this.#compute(pass, index, logits.subarray(index * VOCABULARY).subarray(0, VOCABULARY));
    return { logits };
  }

  decode(pass: EnginePass): EngineOutput {
    const { logits } = this.prefill(pass) as { readonly logits: Float32Array };
    if (this.#flaw === 'decodes otherwise') for (let index = 0; index < pass.length; index += 1) logits[index * VOCABULARY]! += 1;
    if (this.#flaw === 'is not ready for a first token' && pass.positions[0] === 0) logits[3] = NaN;
    return { logits };
  }

  #compute(pass: EnginePass, index: number, logits: Float32Array): void {
    const slot = pass.slots[index]!;
    const sequence = pass.sequences[index]!;
    const from = pass.positions[index]!;
    const end = from + pass.tokenCounts[index]!;
    if (from === 0) {
      this.#before.set(slot, this.#computed.get(slot) ?? 0);
      this.#computed.set(slot, 0);
    }
    for (let layer = 0; layer < LAYERS; layer += 1) {
      const { key, value } = this.#cache.layer(layer);
      const [keys, values] = [key.view(sequence), value.view(sequence)];
      const stride = this.#flaw === 'ignores strides' ? HEADS * DIM : key.strides.token;
      const at = (token: number, head: number): number => token * stride + head * key.strides.head;
      const isOdd = (token: number): boolean => token < keys.length / key.strides.token && Number.isNaN(keys[at(token, 0)]!);
      if (this.#flaw === 'reads before it writes' && isOdd(from)) logits[0]! += 1;
      if (this.#flaw === 'reads past the end' && isOdd(end)) logits[0]! += 1;
      if (this.#flaw === 'writes past the end' && from > 0) values[at(end, 0)] = 1;
      if (this.#flaw === 'rounds what is old' && from > 0) keys[at(0, 0)]! += 1e-6;
      for (let head = 0; head < HEADS; head += 1) {
        if (this.#flaw === 'leaves a head out' && layer + head === 2) continue;
        for (let token = from; token < end; token += 1) {
          const id = pass.tokens[pass.starts[index]! + token - from]!;
          const lost = this.#flaw === 'forgets the end of a second block' && from === 16 && end === 32 && token === 31 ? 0 : 1;
          for (let i = 0; i < DIM; i += 1) {
            keys[at(token, head) + i] = Math.sin(1 + id + layer + 3 * head + 0.7 * i + 0.2 * token);
            values[at(token, head) + i] = lost * Math.cos(id + 2 * layer + head + 1.3 * i + 0.1 * token);
          }
        }
        attend({ keys, values, at: (token) => at(token, head), end }, logits);
      }
    }
    if (this.#flaw === 'mixes up a batch' && index > 0) logits[0]! += 1;
    if (this.#flaw === 'counts what it computed itself' && this.#computed.get(slot) !== from) logits[0]! += 1;
    if (this.#flaw === 'remembers long texts' && this.#before.get(slot)! > 48) logits[0]! += 1;
    this.#computed.set(slot, end);
  }
}

interface Head {
  readonly keys: TensorView;
  readonly values: TensorView;
  readonly at: (token: number) => number;
  readonly end: number;
}

/** Adds a head's part of the logits behind the last token. */
function attend({ keys, values, at, end }: Head, logits: Float32Array): void {
  const weights = Array.from({ length: end }, (_, token) => {
    let score = 0;
    for (let i = 0; i < DIM; i += 1) score += keys[at(token) + i]! * keys[at(end - 1) + i]!;
    return Math.exp(score);
  });
  const total = weights.reduce((sum, weight) => sum + weight);
  logits.forEach((logit, token) => {
    logits[token] = weights.reduce((sum, weight, at0) => sum + weight / total * values[at(at0) + token % DIM]! * (1 + token), logit);
  });
}

const small = (flaw?: Flaw, layout?: LayoutKind) => (): EngineContractPlace => {
  const cache = new KvCache({
    layout, model: { layers: LAYERS, kvHeads: HEADS, headDim: DIM, dtype: 'float32' }, driver: 'host',
    slots: 4, maxTokens: 256, memoryBudgetBytes: 2 ** 24, pageBytes: 65_536,
  });
  return { cache, engine: new SmallEngine(cache, flaw) };
};

/** The titles of the checks that the engine does not pass. */
async function brokenRules(makeEngine: () => EngineContractPlace): Promise<string[]> {
  const broken: string[] = [];
  for (const { title, run } of engineContract(makeEngine)) await run().catch(() => broken.push(title));
  return broken;
}

test('an engine that keeps the rules passes every check', async (t) => {
  for (const { title, run } of engineContract(small())) await t.notThrowsAsync(run, title);
});

test('each rule has an engine that breaks it here, and each check a title of its own', (t) => {
  t.deepEqual(Object.keys(flaws), titles);
  t.is(new Set(titles).size, titles.length);
});

for (const [rule, flaw] of sampled(Object.entries(flaws), 3)) {
  test(`an engine that ${flaw} breaks one rule, by its name`, async (t) => {
    t.deepEqual(await brokenRules(small(flaw)), [rule]);
  });
}

test('an engine that ignores strides breaks rules where the tokens of all tensors alternate', async (t) => {
  t.deepEqual(await brokenRules(small('ignores strides', 'per-layer')), []);
  t.true((await brokenRules(small('ignores strides', 'fused'))).includes('it changes no token before the new ones'));
  for (const layout of layoutKinds) t.deepEqual(await brokenRules(small(undefined, layout)), [], layout);
});

test('an engine that samples is checked by its tokens', async (t) => {
  const sampling = (flaw?: Flaw) => (): EngineContractPlace => {
    const { cache, engine } = small(flaw)();
    const sampled = (pass: EnginePass): EngineOutput => {
      const { logits } = engine.prefill(pass) as { readonly logits: Float32Array };
      const best = (row: Float32Array): number => row.indexOf(Math.max(...row));
      return { tokens: Int32Array.from({ length: pass.length }, (_, index) => best(logits.subarray(index * VOCABULARY).subarray(0, VOCABULARY))) };
    };
    return { cache, engine: { vocabularyTokens: VOCABULARY, prefill: sampled, decode: sampled } };
  };
  t.deepEqual(await brokenRules(sampling()), []);
  t.deepEqual(await brokenRules(sampling('leaves a head out')), ['it writes K and V of each new token, in each head of each tensor']);
});

test('a cache that is too small for the checks is named', async (t) => {
  const makeEngine = (): EngineContractPlace => {
    const cache = new KvCache({ model: { layers: 1, kvHeads: 1, headDim: 4, dtype: 'float32' }, driver: 'host', slots: 2, maxTokens: 256, memoryBudgetBytes: 2 ** 24 });
    return { cache, engine: new SmallEngine(cache, undefined) };
  };
  await t.throwsAsync(engineContract(makeEngine)[0]!.run(), { message: /2 slots of 256 .* 4 of 64/ });
});

test('an engine and its cache are closed when a check has failed, too', async (t) => {
  const closed: string[] = [];
  let cache: KvCache | undefined;
  const makeEngine = (): EngineContractPlace => {
    const place = small('reads past the end')();
    cache = place.cache;
    return { ...place, close: () => { closed.push(place.cache.isClosed ? 'late' : 'in time'); } };
  };
  await t.throwsAsync(engineContract(makeEngine)[3]!.run(), { message: /other bytes behind .* token 0 / });
  t.deepEqual(closed, ['in time']);
  t.true(cache!.isClosed);
});

const sizes = { layers: 2, hidden: 32, intermediate: 48, queryHeads: 4, kvHeads: 2, headDim: 8, vocabularyTokens: 64 };
for (const { title, run } of engineContract(makeLlamaEngine)) {
  slow('computes a Llama')(`the package's engine: ${title}`, async (t) => {
    await t.notThrowsAsync(run);
  });
}

/** The package's engine over a model of random weights. */
function makeLlamaEngine(): EngineContractPlace {
  const folder = writeLlama(randomLlama(new Random(1), sizes));
  const model = new LlamaModel(folder, { threads: 2 });
  const cache = new KvCache({
    model: model.shape('float32'), slots: 4, maxTokens: 256, memoryBudgetBytes: 2 ** 24, driver: 'host', pageBytes: 65_536,
  });
  const engine = new LlamaEngine({ model, cache });
  return {
    cache, engine,
    close: () => {
      engine.close();
      removeFolder(folder);
    },
  };
}
