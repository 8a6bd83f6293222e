// What is watched where tiers are, and where a row is longer than a sequence: requests are counted once, and strips are
// as long as their axes say.

import test from 'ava';

import { topScreen } from '#internal/cli/top-screen.js';
import type { ServerState } from '#internal/server/watch-state.js';
import { hostTier } from 'virtual-kv';

import { withServer, type ServingWorld } from './serving-world.js';

const stateOf = async (world: ServingWorld): Promise<ServerState> => await (await fetch(`${world.url}/watch/state`)).json() as ServerState;

test('transfers to and from tiers are no requests that ended', (t) => withServer(t, { tiers: [hostTier({ bytes: 2 ** 24 })] }, async (world) => {
  const { tiers } = world.cache.prefixes;
  await tiers!.ready();
  for (let request = 0; request < 12; request += 1) { // more texts than the device holds, then the first again
    await (await world.post('/v1/completions', { prompt: String.fromCharCode(65 + request % 6).repeat(400), max_tokens: 2 })).text();
    await tiers!.settled();
  }
  const { cache: { age }, prefixes, totals } = await stateOf(world);
  t.is(totals.completedRequests, 12);
  t.is(age.requests, 12);
  t.is(prefixes.requests, 12);
  t.true(world.cache.metrics.acquired > 12, 'there were transfers');
}));

test('a strip of `vkv top` is as long as its axis says, where a row is longer than a sequence', (t) => withServer(t, { pageBytes: 2 ** 21 }, async (world) => {
  world.engine.hold();
  const answer = world.post('/v1/completions', { prompt: 'a'.repeat(255), max_tokens: 1 });
  while (world.engine.waits === 0) await new Promise(setImmediate);
  world.engine.letGo();
  await answer;
  const state = await stateOf(world);
  t.true(state.cache.layout.tokensPerRow > state.cache.layout.maxTokens);
  const slot = { ...state.cache.slots[0]!, state: 'active' as const, length: 256 };
  const lines = topScreen({ ...state, cache: { ...state.cache, slots: [slot] } }, { columns: 132, lines: 40 }).map((line) => line.replace(/\x1b\[[\d;]*m/g, '')); // eslint-disable-line no-control-regex
  t.true(lines.some((line) => line.includes('0 … 512 of 512 tokens')));
  const strip = /[█░]+$/.exec(lines.find((line) => line.includes('█'))!)![0];
  t.is(strip.length, 100);
  t.is(strip.replaceAll('░', '').length, 50);
}));
