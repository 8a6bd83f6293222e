// An admission that fails after its slot was chosen leaves the slot idle, with the text that it had.

import { isKvError } from 'virtual-kv';

import type { PrefixIndex } from '#internal/prefix/index.js';
import { cacheTest, cacheTests, rowTokens } from '../../helpers/cache.js';
import { assertNothingHeld } from '../../helpers/nothing-held.js';
import { dropFromDevice } from '../tiers/device-index.js';
import { Speaker, tokensOf } from './spoken.js';

const text = tokensOf(1, rowTokens + 10);
const prompts = {
  'holds the text': { tokens: [...text, 5], adoptedTokens: text.length },
  'is to share a row': { tokens: [...text.slice(0, rowTokens), 6, 7], adoptedTokens: 0 },
  'is to share a row and have a copy of another': { tokens: [...text.slice(0, rowTokens + 4), 6, 7], adoptedTokens: 0 },
  'holds no text': { tokens: tokensOf(2, 9), adoptedTokens: 0 },
} as const;

for (const [what, { tokens, adoptedTokens }] of Object.entries(prompts)) {
  cacheTests(`a slot that ${what} is idle as before when the index cannot open its path`, { slots: 3 }, (t, bench) => {
    const { cache } = bench;
    const speaker = new Speaker(cache);
    speaker.say(text).release();
    const { index } = cache.prefixes as unknown as { readonly index: PrefixIndex };
    const before = { ...cache.counts() };
    const cached = cache.prefixes.lookup({ tokens });
    index.open = () => { throw new Error('mine'); };
    t.throws(() => cache.acquire({ tokens }), { message: 'mine' });
    Reflect.deleteProperty(index, 'open');
    cache.verify();
    t.like(cache.counts(), { idleSlots: 3, activeSlots: 0, cachedRows: before.cachedRows, admissiblePages: before.admissiblePages });
    t.deepEqual(cache.prefixes.lookup({ tokens }), cached);
    const sequence = speaker.say(tokens);
    t.is(sequence.cachedTokens, cached.cachedTokens);
    t.is(cache.prefixes.metrics.adoptedTokens, adoptedTokens, 'nothing need be mapped for it');
    t.is(speaker.wrongTokens(sequence, tokens), 0);
    const others = [cache.acquire(), cache.acquire()];
    for (const one of [sequence, ...others]) one.release();
  });
}

for (const [what, { tokens }] of Object.entries(prompts)) {
  cacheTests(`a text is not pinned by a prompt whose memory the driver refused, in a slot that ${what}`, { slots: 3 }, (t, bench) => {
    const { cache } = bench;
    new Speaker(cache).say(text).release();
    const longer = [...tokens, ...tokensOf(3, 5 * rowTokens)];
    bench.fail(bench.device === undefined ? 'mmap-map' : 'cuMemMap', 1);
    try {
      cache.acquire({ tokens: longer }).release();
    } catch (error) {
      t.true(isKvError(error));
    }
    bench.forgiveAll();
    assertNothingHeld(t, cache);
    t.is(cache.prefixes.lookup({ tokens: longer }).cachedTokens, 0);
  });
}

cacheTest('a slot whose fork was refused keeps nothing of it: no text is cached in rows of another', { slots: 6 }, (t, bench) => {
  const { cache, mock } = bench;
  const speaker = new Speaker(cache);
  const parent = speaker.say(tokensOf(1, 10));
  const others = Array.from({ length: 5 }, () => { // in each slot
    mock.failCall('cuMemMap');
    t.throws(() => parent.fork(), { code: 'KV_DRIVER_CALL_FAILED' });
    return cache.acquire({ promptTokens: 0 });
  });
  for (const sequence of [parent, ...others]) sequence.release();
  dropFromDevice(cache);
  speaker.say(tokensOf(3, 15), { caching: 'read' }).fork(); // has a row with the parent's number, which is not cached
  const start = tokensOf(2, 10);
  const branches = [6, 7].map((token) => speaker.say([...start, token]));
  t.is(cache.acquire({ tokens: [...start, 1] }).cachedTokens, 10); // in a row of its own, which has no number yet
  for (const branch of branches) branch.release();
  dropFromDevice(cache);
  const again = cache.acquire({ tokens: [...start, 2] });
  t.is(speaker.wrongTokens(again, start.slice(0, again.length)), 0);
});
