import test from 'ava';

import { SteppedClock } from '../serving/stepped-clock.js';
import { withServer, type ServingWorld } from './serving-world.js';

const ask = (world: ServingWorld): Promise<Response> => world.post('/v1/completions', { prompt: 'abc', max_tokens: 1 });
const statusOf = async (world: ServingWorld): Promise<readonly number[]> =>
  Promise.all(['/ready', '/health'].map(async (path) => (await fetch(world.url + path)).status));

test('a server whose engine fails is neither ready nor healthy, and both once it computes again', (t) => withServer(t, {}, async (world) => {
  t.deepEqual(await statusOf(world), [200, 200], 'before the first pass');
  world.engine.fail(new Error('device lost'));
  t.is((await ask(world)).status, 500);
  t.deepEqual(await statusOf(world), [503, 503]);
  const { problem } = await (await fetch(`${world.url}/ready`)).json() as { problem: string };
  t.regex(problem, /engine fail/);
  world.engine.fail(undefined);
  t.deepEqual(await statusOf(world), [200, 200], 'without a request of a client');
  t.is((await ask(world)).status, 200);
  world.errors.length = 0;
}));

test('one request that failed beside others that are answered says nothing against the engine', (t) => withServer(t, {}, async (world) => {
  world.engine.fail(new Error('once'));
  t.is((await ask(world)).status, 500);
  world.engine.fail(undefined);
  t.is((await ask(world)).status, 200);
  const { passes } = world.engine;
  t.deepEqual(await statusOf(world), [200, 200]);
  t.is(world.engine.passes, passes, 'no trial was needed');
  world.errors.length = 0;
}));

test('a pass that does not end is noticed: at its timeout, or when a whole answer would have to be done', async (t) => {
  for (const passTimeoutMs of [3_000, undefined]) {
    const clock = new SteppedClock();
    await withServer(t, { deadlineMs: 60_000, scheduler: { ...clock.options, passTimeoutMs } }, async (world) => {
      world.engine.hold();
      const answer = ask(world);
      while (world.engine.waits === 0) await new Promise(setImmediate);
      t.deepEqual(await statusOf(world), [200, 200], 'a pass takes time');
      clock.advance(passTimeoutMs ?? 60_001);
      t.is((await answer).status, passTimeoutMs === undefined ? 504 : 503);
      t.deepEqual(await statusOf(world), [503, 503]);
      world.engine.letGo();
      await world.scheduler.idle();
      t.deepEqual(await statusOf(world), [200, 200], 'it has answered after all');
    });
  }
});
