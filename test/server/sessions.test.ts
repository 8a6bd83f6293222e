// Session hints: what they change in the cache, and that they never hold what a running request needs.

import test from 'ava';

import { Sessions } from '#internal/server/sessions.js';
import { costly } from '../runner/slow.js';
import { withServer } from './serving-world.js';

test('a hint is kept for its session until another, or until a session that was done goes on', (t) => {
  const sessions = new Sessions();
  const level = (tenant: string | undefined, key: string | undefined, hint?: 'back-soon' | 'done'): number => sessions.levelOf(tenant, key, hint);
  t.is(level('a', 'talk'), 1);
  t.is(level('a', 'talk', 'back-soon'), 2);
  t.is(level('a', 'talk'), 2);
  t.is(level('b', 'talk'), 1, 'keys are of one tenant');
  t.is(level(undefined, 'talk'), 1);
  t.is(level('a', 'talk', 'done'), 0);
  t.is(level('a', 'talk'), 1);
  t.is(level('a', undefined, 'back-soon'), 2);
  t.is(level('a', undefined), 1);
  t.is(level('a","talk', undefined, 'done'), 0);
});

test('only the latest sessions are remembered', (t) => {
  const sessions = new Sessions();
  sessions.levelOf('a', 'first', 'back-soon');
  for (let key = 0; key < 4_096; key += 1) sessions.levelOf('a', String(key), 'back-soon');
  t.is(sessions.levelOf('a', 'first', undefined), 1);
  t.is(sessions.levelOf('a', '4095', undefined), 2);
});

costly('asks for more text than there is memory for')('text of sessions that come back soon outlasts that of others, and yields to running requests', (t) => withServer(t, { slots: 2 }, async (world) => {
  const ask = async (talk: string, hint?: string): Promise<number> => {
    const response = await world.post('/v1/completions', {
      prompt: `${talk} `.repeat(100).slice(0, 480), max_tokens: 1, prompt_cache_key: talk, ...(hint === undefined ? {} : { session_hint: hint }),
    });
    t.is(response.status, 200);
    const { usage } = await response.json() as { usage: { prompt_tokens_details: { cached_tokens: number } } };
    return usage.prompt_tokens_details.cached_tokens;
  };
  const pages = world.cache.pool.counts().budgetPages;
  await ask('kept', 'back-soon');
  const each = world.cache.layout.pagesFor(world.cache.layout.rowsFor(480));
  const fill = Math.ceil(1.2 * pages / each); // more than there is memory for
  for (let other = 0; other < fill; other += 1) await ask(`other ${other}`);
  t.true(await ask('other 0') < 10, 'it was evicted: only how all of them begin is there');
  t.true(await ask('kept') > 400);
  for (let other = 0; other < fill; other += 1) await ask(`agent ${other}`, 'back-soon'); // all say so: still each is served
  t.true(await ask('other 1') < 10);
}));
