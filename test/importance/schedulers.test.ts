// Selections through schedulers: a request that selects answers what a model without a cache says that is kept from looking at the other tokens, and the
// requests that are computed in the same passes answer exactly, also one for the same text.

import {
  allHeads, diskTier, firstAndLast, OfflineScheduler, OnlineScheduler, type GenerationOutcome, type GenerationRequest, type GenerationResult, type Engine, type Tier,
} from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { dropFromDevice, turn } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { isLikeliest } from '../helpers/logits.js';
import type { PlainSelection } from '../helpers/plain-llama.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { choiceOf, MiB, noted, SelectionWorld, sizes } from './selection-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('scheduled selections');
const storedTokens = 80;

function textOf(random: Random, tokens: number): Int32Array {
  return Int32Array.from({ length: tokens }, () => random.integer(sizes.vocabularyTokens));
}

/** Serves requests that are given all at once, and returns their results in the same order. */
const schedulers: Readonly<Record<string, (world: SelectionWorld, engine: Engine, requests: readonly GenerationRequest[]) => Promise<GenerationResult[]>>> = {
  OfflineScheduler: async ({ cache }, engine, requests) => {
    const outcomes: GenerationOutcome[] = [];
    for await (const outcome of new OfflineScheduler({ cache, engine, prefillTokensPerStep: 32 }).run(requests)) outcomes.push(outcome);
    return outcomes.sort((a, b) => a.index - b.index).map((outcome) => {
      if (outcome.status === 'rejected') throw outcome.reason;
      return outcome.value;
    });
  },
  OnlineScheduler: async ({ cache }, engine, requests) => {
    const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 32 });
    const results = await Promise.all(requests.map((request) => scheduler.submit(request).result));
    await scheduler.close();
    return results;
  },
};

/**
 * The world's engine, and its disk, which gives no whole block before the engine has decoded something; that pass ends only once the device has all `texts`.
 * So what asks for some tokens of a text selects them, and what asks for all is computed beside it.
 */
function inOrder(world: SelectionWorld, disk: Tier, texts: readonly Int32Array[]): { readonly engine: Engine; readonly mixedPasses: () => number } {
  const { cache, engine } = world;
  let mixed = 0;
  let open = (): void => {};
  const isOpen = new Promise<void>((resolve) => { open = resolve; });
  const get = disk.get.bind(disk);
  disk.get = async (...read) => {
    await isOpen;
    return get(...read);
  };
  return {
    engine: {
      vocabularyTokens: engine.vocabularyTokens, canSelect: true, prefill: engine.prefill.bind(engine),
      decode: async (pass) => {
        open();
        while (texts.some((tokens) => cache.prefixes.lookup({ tokens }).cachedTokens < storedTokens)) await turn();
        if (new Set(pass.sequences.slice(0, pass.length).map(({ isLossy }) => isLossy)).size === 2) mixed += 1;
        return engine.decode(pass);
      },
    },
    mixedPasses: () => mixed,
  };
}

/** Whether each token is the greedy one behind the prompt and those before it. */
function areGreedy({ plain }: SelectionWorld, prompt: Int32Array, tokens: Int32Array, selection?: PlainSelection): boolean {
  const logits = plain.logits([...prompt, ...tokens], selection);
  return tokens.every((token, index) => isLikeliest(token, logits[prompt.length - 1 + index]!));
}

for (const [name, serve] of Object.entries(schedulers)) {
  slow('runs a model with selections')(`${name}: tokens of a request with a selection are a model's that sees the selected ones, and those of requests beside it are exact (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const disk = diskTier({ directory: folderOf(t), bytes: 64 * MiB, admit: 'all', durability: 'none' });
    const world = new SelectionWorld(t, random, { tiers: [disk], slots: 8 });
    await world.cache.prefixes.tiers!.ready();
    const texts = [90, 97, 101].map((tokens) => textOf(random, tokens));
    for (const text of texts) await world.store(text.subarray(0, storedTokens));
    const selection = { ratio: 0.2, selector: firstAndLast() };
    const chosen = new Set([0, 1, 2, 3, ...Array.from({ length: 12 }, (_, index) => 68 + index)]);
    const requests: GenerationRequest[] = [
      ...texts.map((tokens) => ({ tokens, maxNewTokens: 12, selection })),
      ...texts.map((tokens) => ({ tokens, maxNewTokens: 12 })),
      { tokens: textOf(random, 50), maxNewTokens: 12, caching: 'off' },
    ];
    const { engine, mixedPasses } = inOrder(world, disk, texts);
    const results = await serve(world, engine, requests);
    for (const [index, { tokens, selection: made }] of results.entries()) {
      const prompt = requests[index]!.tokens as Int32Array;
      const isLossy = index < texts.length;
      t.is(tokens.length, 12);
      t.true(areGreedy(world, prompt, tokens, isLossy ? { from: 0, to: storedTokens, choose: () => chosen } : undefined), `request ${index}`);
      if (isLossy) t.like(made, { sequences: 1, lostSequences: 0, layers: 3, tokens: 240, selectedTokens: 48, fallBacks: 0 });
      else t.is(made, undefined);
    }
    t.true(results.some(({ tokens }, index) => index < texts.length && tokens.join() !== results[texts.length + index]!.tokens.join()), 'the loss is to be seen');
    t.true(mixedPasses() > 0);

    const again = await serve(world, engine, requests.slice(0, texts.length));
    for (const [index, { tokens, selection: made, cachedTokens }] of again.entries()) {
      t.is(made, undefined, 'the device has all of the text by now, and its logits');
      t.is(cachedTokens, texts[index]!.length);
      t.true(areGreedy(world, texts[index]!, tokens));
    }
    await world.cache.prefixes.tiers!.settled();
    dropFromDevice(world.cache);
    await world.close();
  });
}

slow('runs a model with selections')(`a prompt that is computed in chunks is selected for by its first (seed ${seed})`, async (t) => {
  const random = new Random(seed + 1);
  const world = new SelectionWorld(t, random, { tiers: [new PlainTier('mine')] });
  const text = textOf(random, storedTokens + 40);
  await world.store(text.subarray(0, storedTokens));
  const chunk = 8;
  const selector = noted(allHeads());
  const scheduler = new OnlineScheduler({ cache: world.cache, engine: world.engine, prefillTokensPerStep: chunk });
  const { tokens, selection } = await scheduler.submit({ tokens: text, maxNewTokens: 6, selection: { ratio: 0.2, selector } }).result;
  await scheduler.close();
  t.like(selection, { layers: 3, selectedTokens: 48 });
  const choicesBy = (queryTokens: number): number[][] => {
    const made: number[][] = [];
    const choose = choiceOf(allHeads(), 0.2, 0, storedTokens, queryTokens);
    world.plain.logits(text, { from: 0, to: storedTokens, choose: (layer, queries, keys) => {
      const set = choose(layer, queries, keys);
      made[layer] = [...set];
      return set;
    } });
    return made;
  };
  t.deepEqual([0, 1, 2].map((layer) => selector.chosen.get(layer)), choicesBy(chunk));
  t.notDeepEqual(choicesBy(chunk), choicesBy(40), 'others would choose otherwise');
  t.true(areGreedy(world, text, tokens, { from: 0, to: storedTokens, choose: (layer) => new Set(selector.chosen.get(layer)) }));
  await world.cache.prefixes.tiers!.settled();
  await world.close();
});
