// A namespace that changes while sequences run: what they compute from then on may be of other weights, and is cached under no name.

import { cacheTests, rowTokens } from '../../helpers/cache.js';
import { Speaker, tokensOf } from './spoken.js';

cacheTests('a sequence is cached up to the change of the namespace, and no further', {}, (t, { cache }) => {
  const { prefixes } = cache;
  const speaker = new Speaker(cache);
  const found = (tokens: readonly number[]): number => prefixes.lookup({ tokens: [...tokens, 1] }).cachedTokens;
  const text = tokensOf(1, rowTokens + 10);
  const sequence = speaker.say(text);
  const waiting = cache.acquire({ tokens: tokensOf(2, 20) });
  prefixes.setNamespace('v1');
  const longer = speaker.goOn(sequence, text, tokensOf(3, 30));
  speaker.compute(waiting, tokensOf(2, 20), 20);
  t.false(sequence.keepValue('of other weights'));
  const fork = sequence.fork();
  const longest = speaker.goOn(fork, longer, [4, 5]);
  t.deepEqual([found(longer), found(tokensOf(2, 20))], [0, 0]);
  prefixes.setNamespace('');
  t.deepEqual([found(longest), found(tokensOf(2, 20))], [text.length, 0]);
  speaker.goOn(fork, longest, [6, 7]);
  for (const each of [sequence, waiting, fork]) each.release();
  t.deepEqual([found(longest), found(tokensOf(2, 20))], [text.length, 0]);
  t.is(prefixes.lookup({ tokens: tokensOf(2, 20) }).pendingTokens, 0);
});

cacheTests('setting the namespace that is set changes nothing', {}, (t, { cache }) => {
  const speaker = new Speaker(cache);
  const text = tokensOf(1, 30);
  const sequence = speaker.say(text);
  cache.prefixes.setNamespace('');
  const longer = speaker.goOn(sequence, text, [1, 2, 3]);
  t.is(cache.prefixes.lookup({ tokens: [...longer, 1] }).cachedTokens, longer.length);
  sequence.release();
});
