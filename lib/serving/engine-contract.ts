// The contract of an engine as checks that every engine passes, ours and one of your own: `virtual-kv/testing` has
// them. They need no test framework, and say nothing of speed. Their order is that in which a broken engine is mended:
// the first that fails names the rule that it breaks. Each check has a cache and an engine of its own, and closes them.

import assert = require('node:assert/strict');

import { callable, number, readOptions, withDefault } from '../base/options.js';
import { ContractScene, poisons, type Answer, type EngineContractPlace } from './contract-scene.js';

export type { EngineContractPlace };

/** One check: `run` rejects with an AssertionError where the engine breaks the rule. */
export interface EngineContractCheck {
  /** What the engine does, as a sentence. Unique among the checks. */
  readonly title: string;
  /** Runs it. Independent of the other checks. */
  run(): Promise<void>;
}

/** Options of `engineContract`. */
export interface EngineContractOptions {
  /**
   * By how much logits of the same text may differ, as a share of the largest: kernels may add in another order.
   * Default 0.001; 16-bit activations need more, up to 0.05.
   */
  readonly tolerance?: number | undefined;
}

type Check = (scene: ContractScene) => Promise<void>;

const longest = 64;
const slots = 4;
/** Of the second text of a check, which shares no beginning with the first. */
const other = 2;

/** By title, in the order in which an engine is mended. */
const checks: Readonly<Record<string, Check>> = {
  'it answers with numbers for each sequence of a pass that is read': async (scene) => {
    const texts = [9, 5, 1].map((length, index) => scene.begin(scene.tokens(index + 1, length)));
    const entries = texts.map((text) => ({ text, tokens: text.tokens.length }));
    await scene.pass(entries, { asPrompt: true });
    await scene.pass([{ text: scene.begin(scene.tokens(4, 1)), tokens: 1 }]);
  },

  'it writes K and V of each new token, in each head of each tensor': async (scene) => {
    const text = scene.begin(scene.tokens(1, 21));
    for (const tokens of [20, 1]) {
      const from = text.sequence.length;
      await scene.pass([{ text, tokens }], { fresh: poisons.notNumbers });
      for (const [name, bytes] of scene.read(text.sequence, from, from + tokens)) {
        assert.ok(bytes.some((byte) => byte !== poisons.notNumbers), `it did not write ${name}`);
      }
    }
  },

  'it reads no new token before it has written it': (scene) => isDeaf(scene, 'fresh'),

  'it reads nothing behind the new tokens': (scene) => isDeaf(scene, 'behind'),

  'it changes no token before the new ones': async (scene) => {
    const text = scene.begin(scene.tokens(1, 34));
    await scene.pass([{ text, tokens: 23 }]);
    for (const tokens of [10, 1]) {
      const { length } = text.sequence;
      const before = scene.read(text.sequence, 0, length);
      await scene.pass([{ text, tokens }]);
      isUnchanged(before, scene.read(text.sequence, 0, length));
    }
  },

  'it writes nothing behind the new tokens, and in no other slot': async (scene) => {
    const [text, beside] = [scene.begin(scene.tokens(1, 18)), scene.begin(scene.tokens(other, 18))];
    await scene.pass([{ text: beside, tokens: 18 }]);
    const before = scene.read(beside.sequence, 0, scene.mappedTokens(beside.sequence));
    for (const tokens of [17, 1]) {
      await scene.pass([{ text, tokens }], { behind: poisons.notNumbers });
      const behind = scene.read(text.sequence, text.sequence.length, scene.mappedTokens(text.sequence));
      for (const [name, bytes] of behind) assert.ok(bytes.every((byte) => byte === poisons.notNumbers), `it wrote to ${name}`);
      isUnchanged(before, scene.read(beside.sequence, 0, scene.mappedTokens(beside.sequence)));
    }
  },

  'it computes a prompt in chunks as it does whole': async (scene) => {
    const tokens = scene.tokens(1, 37);
    const whole = await scene.compute(scene.begin(tokens));
    for (const chunks of [[1], [36], [5, 16, 1, 3], [16, 16]]) {
      const text = scene.begin(tokens);
      scene.same(await scene.compute(text, chunks), whole, `after chunks of ${chunks.join(', ')} tokens`);
      text.sequence.release();
    }
  },

  'it decodes a token as it computes the last one of a prompt': async (scene) => {
    const tokens = scene.tokens(1, 25);
    const expected = await scene.compute(scene.begin(tokens));
    const text = scene.begin(tokens);
    await scene.pass([{ text, tokens: 23 }]);
    for (let step = 0; step < 2; step += 1) {
      const [answer] = await scene.pass([{ text, tokens: 1 }]);
      if (step === 1) scene.same(answer!, expected, 'the second decoded token');
    }
  },

  'it computes a sequence in a batch as it does alone': async (scene) => {
    const lengths = [30, 3, 17];
    const tokens = lengths.map((length, index) => scene.tokens(index + 1, length + 1));
    const alone: Answer[][] = [];
    for (const each of tokens) {
      const text = scene.begin(each);
      const [prompt] = await scene.pass([{ text, tokens: each.length - 1 }], { asPrompt: true });
      alone.push([prompt!, (await scene.pass([{ text, tokens: 1 }]))[0]!]);
      text.sequence.release();
    }
    const texts = tokens.map((each) => scene.begin(each));
    const begun = texts.map((text, index) => ({ text, tokens: lengths[index]! }));
    const prompts = await scene.pass(begun, { asPrompt: true });
    const decoded = await scene.pass(texts.map((text) => ({ text, tokens: 1 })));
    alone.forEach(([prompt, next], index) => {
      scene.same(prompts[index]!, prompt!, `prompt ${index} of a batch of ${lengths.length}`);
      scene.same(decoded[index]!, next!, `the decoded token ${index} of a batch of ${lengths.length}`);
    });
  },

  'it goes on from tokens that another sequence has computed': async (scene) => {
    const [whole, start] = [scene.tokens(1, 31), 20];
    const first = scene.begin(whole.slice(0, start));
    await scene.compute(first);
    const fork = { sequence: first.sequence.fork(), tokens: whole };
    const answer = await scene.compute(fork);
    scene.same(answer, await scene.compute(scene.begin(whole)), 'behind cached tokens');
  },

  'it knows nothing of the sequence that had a slot before': async (scene) => {
    const tokens = scene.tokens(1, 26);
    const expected = await scene.compute(scene.begin(tokens));
    const left = scene.begin(scene.tokens(other, longest));
    await scene.compute(left);
    left.sequence.release();
    let again = scene.begin(tokens);
    while (again.sequence.slot !== left.sequence.slot) again = scene.begin(tokens);
    scene.same(await scene.compute(again, [11]), expected, 'in a slot that was used before');
  },
};

/** What lies where the engine must not read makes no difference to its answers. */
async function isDeaf(scene: ContractScene, where: 'fresh' | 'behind'): Promise<void> {
  const answers: Answer[][] = [];
  for (const poison of [poisons.zeros, poisons.notNumbers]) {
    const text = scene.begin(scene.tokens(1, 20));
    const given: Answer[] = [];
    for (const tokens of [12, 7, 1]) given.push((await scene.pass([{ text, tokens }], { [where]: poison }))[0]!);
    answers.push(given);
    text.sequence.release();
  }
  const [expected, poisoned] = answers as [Answer[], Answer[]];
  const place = where === 'fresh' ? 'where the new tokens go' : 'behind the new tokens';
  poisoned.forEach((answer, index) => { scene.same(answer, expected[index]!, `with other bytes ${place}`); });
}

function isUnchanged(before: ReadonlyMap<string, Buffer>, after: ReadonlyMap<string, Buffer>): void {
  for (const [name, bytes] of before) assert.ok(bytes.equals(after.get(name)!), `it changed ${name}`);
}

/**
 * Checks of an engine, to be run by any test framework:
 * `for (const { title, run } of engineContract(makeEngine)) test(title, run)`. `makeEngine` returns an engine over a
 * cache of its own. Throws KV_INVALID_OPTION.
 */
export function engineContract(
  makeEngine: () => EngineContractPlace | Promise<EngineContractPlace>, options: EngineContractOptions = {},
): readonly EngineContractCheck[] {
  callable()(makeEngine, { owner: 'engineContract', option: 'makeEngine' });
  const { tolerance } = readOptions('engineContract', options, { tolerance: withDefault(number(0, 1), 0.001) });
  return Object.entries(checks).map(([title, check]) => ({
    title,
    run: async () => {
      const scene = new ContractScene(await makeEngine(), tolerance);
      try {
        const { maxSequences, layout: { maxTokens } } = scene.cache;
        assert.ok(maxSequences >= slots && maxTokens >= longest,
          `the cache has ${maxSequences} slots of ${maxTokens} tokens; the checks need ${slots} of ${longest}`);
        await check(scene);
      } finally {
        await scene.close();
      }
    },
  }));
}
