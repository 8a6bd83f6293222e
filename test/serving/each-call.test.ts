// One request of several is ended, or the engine fails, at each of its calls in turn, before the pass and behind it. Every request
// ends with the right tokens or the expected error, and nothing is left.

import {
  isKvError, OfflineScheduler, OnlineScheduler, type Engine, type EngineOutput, type EnginePass, type GenerationResult, type KvCache,
  type TokenStream,
} from 'virtual-kv';

import { turn, vocabularyTokens, type PatternEngine } from './pattern-engine.js';
import { assertAnswer, assertQuiet, promptOf, servingTests } from './serving-bench.js';

/** What a happening acts on. */
interface Scene {
  readonly cache: KvCache;
  readonly scheduler: OnlineScheduler;
  readonly streams: readonly TokenStream[];
  readonly controller: AbortController;
}

interface Happening {
  /** `output` is there behind the pass. What it returns is answered instead. */
  readonly act: (scene: Scene, output: EngineOutput | undefined) => EngineOutput | undefined;
  /** Error codes that the middle request, and the other two, may end with instead of their answers. */
  readonly middle?: string;
  readonly others?: string;
}

const happenings: Readonly<Record<string, Happening>> = {
  'a signal is raised': { act: ({ controller }) => void controller.abort(), middle: 'KV_ABORTED' },
  'a request is cancelled': { act: ({ streams }) => void streams[1]!.cancel(), middle: 'KV_ABORTED' },
  'a reader leaves': { act: ({ streams }) => void streams[1]!.return(), middle: 'KV_ABORTED' },
  'the scheduler is closed': { act: ({ scheduler }) => void scheduler.close(), middle: 'KV_CLOSED', others: 'KV_CLOSED' },
  'the prefix cache is reset': { act: ({ cache }) => void cache.prefixes.reset({ preempt: true }) },
  'the engine throws': { act: () => { throw new Error('no more'); }, middle: 'KV_ENGINE_FAILED', others: 'KV_ENGINE_FAILED' },
  'the engine answers with too little': {
    act: () => ({ logits: new Float32Array(vocabularyTokens - 1) }), middle: 'KV_ENGINE_FAILED', others: 'KV_ENGINE_FAILED',
  },
  'a row of logits is not a number': {
    act: (_scene, output) => {
      if (output === undefined || !('logits' in output)) return output;
      return { logits: output.logits.slice().fill(Number.NaN, 0, vocabularyTokens) };
    },
    middle: 'KV_ENGINE_FAILED', others: 'KV_ENGINE_FAILED',
  },
};

/** The engine, with something happening at its call number `at`. */
function disturbed(
  engine: PatternEngine, at: number, isBefore: boolean, happen: (output: EngineOutput | undefined) => EngineOutput | undefined,
): Engine & { calls: number } {
  const answer = async (call: 'prefill' | 'decode', pass: EnginePass): Promise<EngineOutput> => {
    self.calls += 1;
    const isNow = self.calls === at;
    await turn();
    const instead = isNow && isBefore ? happen(undefined) : undefined;
    const output = await engine[call](pass);
    if (instead !== undefined) return instead;
    return (isNow && !isBefore ? happen(output) : undefined) ?? output;
  };
  const self = {
    vocabularyTokens, calls: 0, prefill: (pass: EnginePass) => answer('prefill', pass), decode: (pass: EnginePass) => answer('decode', pass),
  };
  return self;
}

const lengths = [70, 90, 120];
const mostCalls = 20;

for (const [title, { act, middle, others }] of Object.entries(happenings)) {
  servingTests(`${title} at each call of the engine`, { slots: 2, rows: 8 }, async ({ t, cache, engine }) => {
    const ends: Record<string, number> = {};
    let calls = 0;
    for (let at = 1; at <= mostCalls; at += 1) {
      for (const isBefore of [true, false]) {
        if (at % 2 === 0) cache.prefixes.reset(); // else much is cached, and prompts may start whole
        const shaky = disturbed(engine, at, isBefore, (output) => act(scene, output));
        const scheduler = new OnlineScheduler({ cache, engine: shaky, prefillTokensPerStep: 64, minPendingTokens: 8 });
        const controller = new AbortController();
        const requests = lengths.map((length, index) => ({
          tokens: promptOf(length, at % 3), maxNewTokens: 3 + index, ...(index === 1 ? { signal: controller.signal } : {}),
        }));
        const scene: Scene = { cache, scheduler, controller, streams: requests.map((request) => scheduler.submit(request)) };
        const results = await Promise.allSettled(scene.streams.map(({ result }) => result));
        results.forEach((result, index) => {
          if (result.status === 'fulfilled') assertAnswer(t, requests[index]!, result.value);
          const end = result.status === 'fulfilled' ? 'done' : codeOf(result.reason);
          ends[end] = (ends[end] ?? 0) + 1;
          t.true(['done', index === 1 ? middle : others].includes(end), `request ${index}, call ${at}: ${end}`);
        });
        await scheduler.close();
        assertQuiet(t, cache, engine);
        calls = Math.max(calls, shaky.calls);
      }
    }
    t.true(calls > 8 && calls < mostCalls, `${calls} calls at most`); // the last turns change nothing
    t.true(ends['done']! > 0 && (middle === undefined || ends[middle]! > 0), JSON.stringify(ends));
  });
}

servingTests('an offline run is left behind each of its outcomes', {}, async ({ t, cache, engine }) => {
  const requests = lengths.flatMap((length) => [0, 1].map((key) => ({ tokens: promptOf(length, key), maxNewTokens: 4 })));
  for (let leaveBehind = 1; leaveBehind <= requests.length; leaveBehind += 1) {
    const offline = new OfflineScheduler({ cache, engine, prefillTokensPerStep: 32 });
    const seen = new Map<number, GenerationResult>();
    for await (const outcome of offline.run(requests)) {
      if (outcome.status === 'fulfilled') seen.set(outcome.index, outcome.value);
      if (seen.size === leaveBehind) break;
    }
    t.is(seen.size, leaveBehind);
    for (const [index, result] of seen) assertAnswer(t, requests[index]!, result);
    assertQuiet(t, cache, engine);
  }
});

function codeOf(error: unknown): string {
  return isKvError(error) ? error.code : String(error);
}
