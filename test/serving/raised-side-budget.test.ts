// A request that waits for room of side tensors hears of a budget that is raised; time stands still, so that nothing else wakes it.

import { OfflineScheduler, OnlineScheduler, type GenerationRequest, type GenerationResult, type SchedulerOptions } from 'virtual-kv';

import { cacheTest } from '../helpers/cache.js';
import { turn } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, resultOf, smallModel } from './serving-bench.js';
import { assertSideQuiet, SideEngine, sideTensors } from './side-engine.js';
import { SteppedClock } from './stepped-clock.js';

const runs = {
  offline: async (options: SchedulerOptions, request: GenerationRequest) => resultOf((await collect(new OfflineScheduler(options).run([request])))[0]),
  online: (options: SchedulerOptions, request: GenerationRequest) => new OnlineScheduler(options).submit(request).result,
} as const;

for (const [name, run] of Object.entries(runs)) {
  cacheTest(`${name}: a request that waits for pages of side tensors starts when their budget is raised`, {
    model: smallModel, maxTokens: 400, sideTensors, sideBudgetBytes: 12 * 64 * 1024, slots: 3,
  }, async (t, { cache }) => {
    const engine = new SideEngine({ cache });
    const options = { cache, engine, ...new SteppedClock().options };
    const held = await run(options, { tokens: promptOf(100), maxNewTokens: 1, handOver: true });
    const request = { tokens: promptOf(110, 2), maxNewTokens: 20 };
    let result: GenerationResult | undefined;
    const waiting = run(options, request).then((given) => { result = given; });
    for (let turns = 0; turns < 20; turns += 1) await turn();
    t.is(result, undefined);
    cache.setSideBudget(24 * 64 * 1024);
    for (let turns = 0; turns < 200 && result === undefined; turns += 1) await turn();
    t.not(result, undefined, 'it was woken');
    held.side!.close();
    await waiting;
    assertAnswer(t, request, result!);
    assertSideQuiet(t, cache, engine);
  });
}
