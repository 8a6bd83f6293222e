// Forks and rows that are written while shared: copied at the first write of either side, never later, and never for nothing.

import { cacheTest, cacheTests, rowTokens, tinyModel } from '../../helpers/cache.js';
import { PhysicalPages } from './physical-pages.js';
import { Speaker, tokensOf } from './spoken.js';

const prompt = tokensOf(1, 2 * rowTokens + 10);
const pagesPerRow = 2 * tinyModel.layers;

cacheTests('a fork shares every row, also the one that is not full', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const sequence = speaker.say(prompt);
  const before = bench.pool().mappedPages;
  const fork = sequence.fork();
  t.is(fork.length, prompt.length);
  t.is(fork.cachedTokens, prompt.length);
  t.not(fork.slot, sequence.slot);
  t.is(bench.pool().mappedPages, before);
  t.is(speaker.wrongTokens(fork, prompt), 0);
  t.is(bench.cache.metrics.detachedRows, 0);
});

for (const first of ['the fork', 'the parent'] as const) {
  cacheTests(`the first to write gets a copy of the last row: ${first}; the other writes in place`, {}, (t, bench) => {
    const speaker = new Speaker(bench.cache);
    const parent = speaker.say(prompt);
    const fork = parent.fork();
    const [writer, other] = first === 'the fork' ? [fork, parent] : [parent, fork];
    const before = bench.pool().mappedPages;
    const a = speaker.goOn(writer, prompt, [1, 2, 3]);
    t.is(bench.cache.metrics.detachedRows, 1);
    t.is(bench.pool().mappedPages, before + pagesPerRow);
    const b = speaker.goOn(other, prompt, [4, 5]);
    t.is(bench.cache.metrics.detachedRows, 1);
    t.is(speaker.wrongTokens(writer, a), 0);
    t.is(speaker.wrongTokens(other, b), 0);
    bench.cache.verify();
  });
}

cacheTests('a fork at the end of a row copies nothing', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const text = prompt.slice(0, 2 * rowTokens);
  const parent = speaker.say(text);
  const fork = parent.fork();
  const [a, b] = [speaker.goOn(fork, text, [1]), speaker.goOn(parent, text, [2])];
  t.like(bench.cache.metrics, { detachedRows: 0, copiedBytes: 0 });
  t.is(speaker.wrongTokens(fork, a) + speaker.wrongTokens(parent, b), 0);
});

cacheTests('a text whose last row a fork maps too goes on in a row of its own', { rows: 20, slots: 2 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const parent = speaker.say(prompt);
  const fork = parent.fork();
  parent.release();
  const longer = [...prompt, 1, 2, 3];
  speaker.say(longer).release();
  speaker.say(tokensOf(2, 10)).release(); // takes that slot, and rows that the fork maps stay cached
  const other = speaker.goOn(fork, prompt, [4, 5, 6]); // in place, as it is the last that maps the row
  t.is(speaker.wrongTokens(fork, other), 0);
  const again = speaker.say(longer);
  t.is(speaker.wrongTokens(again, longer), 0);
  t.is(speaker.wrongTokens(fork, other), 0);
  bench.cache.verify();
});

cacheTests('a beam: forks of forks, the losers released', { rows: 60, slots: 8 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  let beams = [{ sequence: speaker.say(prompt), text: prompt }];
  for (let round = 0; round < 20; round += 1) {
    const [best] = beams;
    const forks = Array.from({ length: 3 }, () => ({ sequence: best!.sequence.fork(), text: best!.text }));
    for (const loser of beams.slice(1)) loser.sequence.release();
    beams = [best!, ...forks];
    for (const [index, beam] of beams.entries()) beam.text = speaker.goOn(beam.sequence, beam.text, [round * 10 + index, 7]);
    for (const { sequence, text } of beams) t.is(speaker.wrongTokens(sequence, text), 0);
    beams.reverse();
    bench.cache.verify();
  }
});

cacheTests('a sequence without tokens can be forked too', {}, (t, bench) => {
  const sequence = bench.sequenceOf(rowTokens + 5);
  bench.cache.stamp(sequence, 0, rowTokens + 5, 1);
  const fork = sequence.fork();
  bench.compute(fork, 1);
  bench.cache.stamp(fork, rowTokens + 5, 1, 2);
  bench.compute(sequence, 1);
  bench.cache.stamp(sequence, rowTokens + 5, 1, 3);
  t.is(bench.cache.verifyStamp(fork, 0, rowTokens + 5, 1) + bench.cache.verifyStamp(fork, rowTokens + 5, 1, 2), 0);
  t.is(bench.cache.verifyStamp(sequence, 0, rowTokens + 5, 1) + bench.cache.verifyStamp(sequence, rowTokens + 5, 1, 3), 0);
  sequence.release();
  t.is(bench.cache.verifyStamp(fork, 0, rowTokens + 5, 1), 0);
  fork.release();
  t.is(bench.cache.counts().cachedRows, 0);
});

cacheTests('no fork under a prepared batch, nor without a free slot; then nothing has changed', { slots: 1 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const sequence = speaker.say(prompt);
  bench.prepare(sequence, 1);
  t.throws(() => sequence.fork(), { code: 'KV_SLOT_BUSY' });
  bench.discard();
  t.throws(() => sequence.fork(), { code: 'KV_NO_FREE_SLOT' });
  t.is(speaker.wrongTokens(sequence, prompt), 0);
  sequence.release();
  t.throws(() => sequence.fork(), { code: 'KV_SLOT_RELEASED' });
});

cacheTests('taking tokens back into a shared row and writing others leaves the others their text', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const first = speaker.say(prompt);
  const second = speaker.say([...prompt, 1, 2]);
  t.is(second.cachedBy.aliasedTokens, 2 * rowTokens);
  second.truncate(rowTokens + 3);
  const text = speaker.goOn(second, prompt.slice(0, rowTokens + 3), [9, 9, 9]);
  t.is(speaker.wrongTokens(second, text), 0);
  t.is(speaker.wrongTokens(first, prompt), 0);
  t.is(bench.cache.metrics.detachedRows, 1);
});

cacheTests('a rejected speculation is no longer found, and costs no copy', {}, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const sequence = speaker.say(prompt);
  let text = prompt;
  for (let round = 0; round < 10; round += 1) {
    speaker.goOn(sequence, text, [1, 2, 3, 4]);
    t.is(bench.cache.prefixes.lookup({ tokens: [...text, 1, 2, 3, 4, 5] }).cachedTokens, text.length + 4);
    sequence.truncate(text.length + 1);
    text = [...text, 1];
    t.is(bench.cache.prefixes.lookup({ tokens: [...text, 2, 3, 4, 5] }).cachedTokens, text.length);
  }
  t.is(speaker.wrongTokens(sequence, text), 0);
  t.like(bench.cache.metrics, { detachedRows: 0, copiedBytes: 0 });
});

for (const scrub of ['off', 'between-tenants'] as const) {
  cacheTest(`a row that queued work still uses where it was given up goes to no other sequence with a fork's slot (scrub: ${scrub})`, { scrub }, (t, bench) => {
    const { cache, mock } = bench;
    const memory = new PhysicalPages(mock, cache);
    const pagesOf = (addresses: readonly bigint[]): bigint[] => {
      const pages: bigint[] = [];
      memory.hear();
      memory.visit(addresses, 0, cache.layout.maxRows, (page) => {
        if (page !== undefined) pages.push(page);
      });
      return pages;
    };
    const parent = cache.acquire({ promptTokens: 10, reserve: 'none', tenant: 'a' }); // nothing of it is cached
    const batch = bench.batchOf([parent, 10]);
    cache.prepare(batch);
    cache.commit(batch, { fence: { step: 1 } }); // which goes on, at the parent's addresses
    const fork = parent.fork();
    parent.truncate(0);
    fork.release(); // no work of its own was queued
    const used = pagesOf(memory.addressesOf(parent));
    t.is(used.length, pagesPerRow);
    const others = Array.from({ length: cache.layout.slots - 1 }, () => cache.acquire({ promptTokens: 1, tenant: 'b' }));
    for (const other of others) {
      bench.compute(other, 1);
      const pages = pagesOf(memory.addressesOf(other));
      t.deepEqual(pages.filter((page) => used.includes(page)), [], `slot ${other.slot}`);
    }
    cache.completeStep(1);
    cache.verify();
    t.is(cache.metrics.lateErrors, 0);
  });
}
