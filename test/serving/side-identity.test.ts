// Three stages behind an encoder of images, every one with caches of its own: 200 requests with shared prefixes and images, of which some
// are cancelled and some preempted. Whatever was cached, batched, evicted or computed again, every stage's tokens and rows are the
// bytes that a pipeline without any cache computes, one request after the other.

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { imageTokens, StagePipeline, type CacheSwitches, type SchedulerName, type StagePipelineOptions, type StagePrompt } from './stage-pipeline.js';
import { costly } from '../runner/slow.js';
import { scaled } from '../runner/tier.js';

const count = scaled(200);
const images = 12;
const seed = seedOf('side-identity');
const prompts = randomPrompts(new Random(seed));
const pages = 65_536;
const ample: StagePipelineOptions['memory'] = { slots: 4, memoryBudgetBytes: 64 * pages, sideBudgetBytes: 200 * pages };
/** Rows of K and V for two or three long requests; of side tensors for as many, beside what is handed over. */
const scarce: StagePipelineOptions['memory'] = { slots: 4, memoryBudgetBytes: 20 * pages, sideBudgetBytes: 40 * pages, handOverSlots: 5 };

const switches = {
  on: [true, true, true, true], off: [false, false, false, false], 'of the encoder and the second stage on': [true, false, true, false],
  'of the first and the last stage on': [false, true, false, true],
} as const satisfies Record<string, CacheSwitches>;
/** By scheduler, since each run takes seconds. */
const mixed = {
  naive: 'of the encoder and the second stage on', offline: 'of the first and the last stage on', online: 'of the encoder and the second stage on',
} as const;

/** By request and stage. Computed once. */
let expected: Promise<{ readonly digests: readonly string[][]; readonly computed: number; readonly encoded: number }> | undefined;
const expectedOf = (t: Parameters<StagePipeline['close']>[0]): NonNullable<typeof expected> => expected ??= (async () => {
  const plain = new StagePipeline({ scheduler: 'naive', caches: switches.off, memory: ample });
  const digests: string[][] = [];
  for (const prompt of prompts) digests.push(...await plain.serve([prompt]));
  const computed = computedBy(plain);
  await plain.close(t);
  return { digests, computed, encoded: plain.encoded };
})();

/** How requests come: so many together through all stages, and so many groups at a time. */
const runs: readonly { readonly scheduler: SchedulerName; readonly together: number; readonly groups: number; readonly memory: StagePipelineOptions['memory'] }[] = [
  { scheduler: 'naive', together: 4, groups: 1, memory: ample },
  { scheduler: 'offline', together: 8, groups: 1, memory: { ...ample, memoryBudgetBytes: 12 * pages } },
  { scheduler: 'online', together: 1, groups: 10, memory: scarce },
];

for (const { scheduler, together, groups, memory } of runs) {
  for (const which of ['on', 'off', mixed[scheduler]] as const) {
    const caches: CacheSwitches = switches[which];
    const title = `every stage's output is the same to the last byte: ${scheduler}, caches ${which}, ${count} requests, seed ${seed}`;
    costly('runs a pipeline of stages')(title, async (t) => {
      const reference = await expectedOf(t);
      const pipeline = new StagePipeline({ scheduler, caches, memory, random: new Random(seed + 1) });
      let next = 0;
      let compared = 0;
      const serveGroups = async (): Promise<void> => {
        while (next < count) {
          const first = next;
          next += together;
          const digests = await pipeline.serve(prompts.slice(first, next));
          digests.forEach((stages, index) => {
            compared += stages.length;
            const wanted = reference.digests[first + index]!;
            if (stages.some((digest, stage) => digest !== wanted[stage])) t.deepEqual(stages, wanted.slice(0, stages.length), `request ${first + index}`);
          });
        }
      };
      await Promise.all(Array.from({ length: groups }, serveGroups));
      const preemptions = pipeline.stages.reduce((sum, stage) => sum + stage.preemptions, 0);
      const computed = computedBy(pipeline);
      const found = pipeline.stages.map(({ cache }) => cache.prefixes.metrics.hitRate.toFixed(2));
      t.log({ compared, cancelled: pipeline.cancelled, preemptions, computed, of: reference.computed, encoded: pipeline.encoded, found });
      t.is(compared + missing(pipeline.cancelled, compared), 3 * count);
      if (count >= 200 && process.env['VKV_TEST_SEED'] === undefined) {
        t.true(pipeline.cancelled > 0, 'none was cancelled');
        if (scheduler !== 'naive') t.true(preemptions > 0, 'none was preempted');
        t.true(compared > 2.3 * count, `${compared} outputs`);
        if (caches[0]) t.true(pipeline.encoded < 0.5 * reference.encoded, 'images were encoded again');
        if (which === 'on') t.true(computed < 0.85 * reference.computed, 'caches have saved something');
        pipeline.stages.forEach(({ cache }, stage) => { t.is(cache.prefixes.metrics.hitRate > 0, caches[stage + 1]!, `stage ${stage}`); });
      }
      await pipeline.close(t);
    });
  }
}

/** Outputs that cancelled requests lack, which is 1 to 3 for each. */
function missing(cancelled: number, compared: number): number {
  const lacking = 3 * count - compared;
  return lacking >= cancelled && lacking <= 3 * cancelled ? lacking : Number.NaN;
}

function computedBy({ stages }: StagePipeline): number {
  return stages.reduce((sum, { engine }) => sum + engine.computedTokens, 0);
}

/** Prompts that mostly begin as one of the last 12 does, with up to three images. */
function randomPrompts(random: Random): StagePrompt[] {
  const made: StagePrompt[] = [];
  while (made.length < count) {
    const like = made.length > 0 && random.chance(0.85) ? made.at(-1 - random.integer(Math.min(12, made.length)))! : undefined;
    const shared = like === undefined ? 0 : random.chance(0.3) ? like.tokens.length : random.integer(like.tokens.length + 1);
    const kept = like?.images.filter(({ at }) => at + imageTokens <= shared) ?? [];
    const cut = like?.images.find(({ at }) => at < shared && at + imageTokens > shared)?.at ?? shared; // no part of an image
    const tokens = like?.tokens.slice(0, cut) ?? [];
    const found = [...kept];
    const parts = 1 + random.integer(3);
    for (let part = 0; part < parts && tokens.length < 60; part += 1) {
      if (random.chance(0.4) && found.length < 3) {
        found.push({ at: tokens.length, number: random.integer(images) });
        tokens.push(...new Array<number>(imageTokens).fill(0));
      } else tokens.push(...Array.from({ length: 1 + random.integer(14) }, () => random.integer(40)));
    }
    if (tokens.length === 0) tokens.push(1);
    made.push({ tokens, images: found, answerTokens: 2 + random.integer(14) });
  }
  return made;
}
