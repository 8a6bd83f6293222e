// Engines that run ahead: they queue a step's work, commit, and go on before it is done. Rows that leave or change in a sequence
// which goes on are copied behind that work and unmapped after it, never under it. The mock loses its device where that fails.

import { cacheTest, cacheTests, rowTokens, type BenchOptions } from '../helpers/cache.js';
import { refuses } from '../helpers/refuses.js';
import { RunAheadEngine } from '../helpers/run-ahead-engine.js';
import { tokensOf } from './prefix/spoken.js';

const manual: BenchOptions = { device: { streams: 'manual' } };
const prompt = tokensOf(1, 2 * rowTokens + 10);

for (const writer of ['the fork', 'the parent'] as const) {
  cacheTest(`a fork of a sequence with queued work waits for nothing when ${writer} writes first`, manual, (t, bench) => {
    const engine = new RunAheadEngine(bench);
    const parent = engine.start(prompt);
    engine.step([parent]);
    const fork = engine.fork(parent);
    const pending = bench.mock.pendingWork;
    const [first, second] = writer === 'the fork' ? [fork, parent] : [parent, fork];
    engine.step([first, second]);
    engine.step([first, second]);
    t.true(bench.mock.pendingWork > pending, 'nothing was waited for');
    t.is(bench.cache.metrics.detachedRows, 1);
    engine.assertAll();
    engine.close();
  });
}

cacheTest('a fork shares what another sequence computed beside its parent behind that sequence\'s work', manual, (t, bench) => {
  const engine = new RunAheadEngine(bench, { streams: 2, probes: 200 });
  const [cached, parent] = [prompt, prompt.slice(0, rowTokens)].map((text, lane) => engine.start(text, {}, lane));
  engine.step([cached!]);
  t.is(bench.cache.prefixes.lookup({ tokens: prompt }).cachedTokens, prompt.length - 1);
  engine.step([parent!]);
  const fork = engine.fork(parent!);
  engine.step([fork]);
  engine.assertAll(); // does the work of the parent's stream first
  engine.close();
});

cacheTest('taking tokens back into a row that another sequence needs waits for its own work only', manual, (t, bench) => {
  const engine = new RunAheadEngine(bench);
  const first = engine.start(prompt);
  engine.step([first]);
  const second = engine.start([...prompt, 1, 2]);
  t.is(second.sequence.cachedBy.aliasedTokens, 2 * rowTokens);
  engine.step([first, second]);
  engine.truncate(second, rowTokens + 3);
  t.true(bench.mock.pendingWork > 0, 'nothing is unmapped yet');
  engine.step([second]);
  engine.assertAll();
  engine.close();
});

cacheTest('taking tokens back into a row in which cached text goes on waits for its own work, and leaves that text cached', manual, (t, bench) => {
  const engine = new RunAheadEngine(bench);
  const writer = engine.start(prompt);
  engine.step([writer]);
  engine.release(writer);
  const sequence = engine.start([...prompt, 1, 2]);
  engine.step([sequence]);
  engine.truncate(sequence, rowTokens + 3);
  engine.step([sequence]);
  t.is(bench.cache.metrics.detachedRows, 1);
  t.is(bench.cache.prefixes.lookup({ tokens: [...prompt, 9] }).cachedTokens, prompt.length);
  engine.assertAll();
  engine.close();
});

cacheTest('of a batch in which waiting for one sequence ends the work of another, both get rows of their own', manual, (t, bench) => {
  const engine = new RunAheadEngine(bench);
  const first = engine.start(prompt);
  engine.step([first]);
  const others = [engine.start([...prompt, 1, 2]), engine.start([...prompt, 3, 4])];
  engine.step([first, ...others]);
  for (const other of others) engine.truncate(other, rowTokens + 3);
  engine.step(others);
  t.is(bench.cache.metrics.detachedRows, 2);
  engine.assertAll();
  engine.close();
});

cacheTests('a row that a step may still write is not copied before that step is complete', {}, (t, bench) => {
  const engine = new RunAheadEngine(bench, { steps: true });
  const parent = engine.start(prompt);
  engine.step([parent]);
  const fork = engine.fork(parent);
  refuses(t, () => engine.step([fork]), 'KV_WORK_QUEUED', { step: 1 });
  t.is(fork.sequence.length, prompt.length, 'nothing has changed');
  engine.completeStep(1);
  engine.step([fork]);
  engine.assertAll();
  engine.close();
});
