// What a request brings for the engine: its passes have it, and it is released once, when no pass reads it any more. A request may end in
// the middle of a pass: then nothing of that pass is found by others, since its input may have been gone.

import { NaiveScheduler, OnlineScheduler, type Engine, type EnginePass } from 'virtual-kv';

import { refusesAsync } from '../helpers/refuses.js';
import { PatternEngine, turn } from './pattern-engine.js';
import { assertAnswer, collect, promptOf, servingTests } from './serving-bench.js';
import { SteppedClock } from './stepped-clock.js';

interface Watched {
  readonly engine: Engine;
  readonly inputs: unknown[][];
  /** What the next pass waits for. */
  gate: Promise<unknown>;
  isComputing: boolean;
}

/** The engine, whose passes note their inputs and wait. */
function watched(pattern: PatternEngine): Watched {
  const compute = (name: 'prefill' | 'decode'): Engine['prefill'] => async (pass: EnginePass) => {
    state.inputs.push([...pass.inputs]);
    state.isComputing = true;
    await state.gate;
    state.isComputing = false;
    return pattern[name](pass);
  };
  const state: Watched = {
    inputs: [], gate: Promise.resolve(), isComputing: false,
    engine: { vocabularyTokens: pattern.vocabularyTokens, prefill: compute('prefill'), decode: compute('decode') },
  };
  return state;
}

servingTests('every pass has the inputs of its requests, and requests without one none', {}, async ({ cache, engine, t }) => {
  const watch = watched(engine);
  const scheduler = new OnlineScheduler({ cache, engine: watch.engine });
  const input = { rows: 3 };
  await Promise.all([
    scheduler.submit({ tokens: promptOf(5), maxNewTokens: 2, input }).result, scheduler.submit({ tokens: promptOf(4, 2), maxNewTokens: 3 }).result,
  ]);
  t.deepEqual(watch.inputs, [[input, undefined], [input, undefined], [undefined]]);
  await collect(new NaiveScheduler({ cache, engine: watch.engine }).run([{ tokens: [1, 2], maxNewTokens: 1, input: 0 }]));
  t.deepEqual(watch.inputs.at(-1), [0]);
  await scheduler.close();
});

servingTests('an input is released once, also of a request that never ran', { slots: 1 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const released: string[] = [];
  const submit = (name: string, deadlineMs?: number) =>
    scheduler.submit({ tokens: promptOf(20), maxNewTokens: 2, input: name, releaseInput: () => { released.push(name); }, deadlineMs });
  const streams = [submit('answered'), submit('cancelled while it waits'), submit('late', 0), submit('closed')];
  streams[1]!.cancel();
  await streams[0]!.result;
  await turn();
  t.deepEqual(released.toSorted(), ['answered', 'cancelled while it waits', 'late']);
  await scheduler.close();
  await Promise.allSettled(streams.map(({ result }) => result));
  t.is(released.length, 4);
});

servingTests('a request that ends in the middle of a pass releases its input behind it, and leaves nothing of that pass to others', {}, async (serving) => {
  const { t, cache, engine } = serving;
  const watch = watched(engine);
  const scheduler = new OnlineScheduler({ cache, engine: watch.engine, prefillTokensPerStep: 32 });
  let isReleased = false;
  let open = (): void => {};
  watch.gate = new Promise<void>((resolve) => { open = resolve; });
  const request = { tokens: promptOf(60), maxNewTokens: 2 };
  const stream = scheduler.submit({ ...request, input: 'rows', releaseInput: () => { isReleased = true; } });
  const other = { tokens: promptOf(10, 3), maxNewTokens: 2 };
  const neighbour = scheduler.submit(other);
  while (!watch.isComputing) await turn();
  stream.cancel();
  await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
  await turn();
  t.false(isReleased, 'the pass may read it');
  open();
  assertAnswer(t, other, await neighbour.result);
  t.true(isReleased);
  t.is(cache.prefixes.lookup({ tokens: request.tokens }).cachedTokens, 0);
  const again = await scheduler.submit({ ...request, input: 'rows' }).result;
  t.is(again.cachedTokens, 0);
  assertAnswer(t, request, again);
  await scheduler.close();
});

servingTests('an input that a given-up pass may read is released when that is over', {}, async ({ t, cache, engine }) => {
  const watch = watched(engine);
  const clock = new SteppedClock();
  const scheduler = new OnlineScheduler({ cache, engine: watch.engine, passTimeoutMs: 100, ...clock.options });
  let releases = 0;
  let open = (): void => {};
  watch.gate = new Promise<void>((resolve) => { open = resolve; });
  const stream = scheduler.submit({ tokens: promptOf(20), maxNewTokens: 2, input: 1, releaseInput: () => { releases += 1; } });
  while (!watch.isComputing) await turn();
  clock.advance(100);
  await t.throwsAsync(stream.result, { code: 'KV_ENGINE_STALLED' });
  await turn();
  t.is(releases, 0);
  open();
  await scheduler.close();
  await turn();
  t.is(releases, 1);
});

servingTests('a `releaseInput` that throws ends all open requests with what it threw, or a typed error', { slots: 1 }, async ({ t, cache, engine }) => {
  for (const thrown of [new Error('no'), undefined]) {
    const scheduler = new OnlineScheduler({ cache, engine });
    const first = scheduler.submit({ tokens: promptOf(5), maxNewTokens: 1, releaseInput: () => { throw thrown; } }); // eslint-disable-line @typescript-eslint/only-throw-error
    const second = scheduler.submit({ tokens: promptOf(5, 1), maxNewTokens: 300 });
    await first.result;
    if (thrown === undefined) await refusesAsync(t, second.result, 'KV_INVALID_OPTION', { option: 'releaseInput' });
    else await t.throwsAsync(second.result, { is: thrown });
    await scheduler.close();
  }
});
