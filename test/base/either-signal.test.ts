// EitherSignal: which of the two aborts it, for which reason, and that it leaves nothing on the one that lives long.

import { getEventListeners } from 'node:events';

import test from 'ava';

import { EitherSignal } from '#internal/base/either-signal.js';
import { slow } from '../runner/slow.js';

const listeners = (...signals: readonly AbortSignal[]): number[] => signals.map((signal) => getEventListeners(signal, 'abort').length);

/** Two controllers and the signal for both. */
function pair() {
  const [lasting, brief] = [new AbortController(), new AbortController()];
  return { lasting, brief, either: new EitherSignal(lasting.signal, brief.signal) };
}

for (const first of ['lasting', 'brief'] as const) {
  test(`it is aborted with the ${first} one, once and for its reason, whatever the other does later`, (t) => {
    const { either, ...controllers } = pair();
    const reasons: unknown[] = [];
    either.signal.addEventListener('abort', () => { reasons.push(either.signal.reason); });
    t.false(either.signal.aborted);
    controllers[first].abort('the first');
    controllers[first === 'lasting' ? 'brief' : 'lasting'].abort('the second');
    t.true(either.signal.aborted);
    t.deepEqual(reasons, ['the first']);
    t.is(either.signal.reason, 'the first');
  });

  test(`it is aborted from the beginning where the ${first} one was`, (t) => {
    const [aborted, open] = [AbortSignal.abort('before'), new AbortController()];
    const either = first === 'lasting' ? new EitherSignal(aborted, open.signal) : new EitherSignal(open.signal, aborted);
    t.true(either.signal.aborted);
    t.is(either.signal.reason, 'before');
    open.abort('later');
    t.is(either.signal.reason, 'before');
  });
}

test('where both were aborted the reason is that of the lasting one', (t) => {
  t.is(new EitherSignal(AbortSignal.abort('lasting'), AbortSignal.abort('brief')).signal.reason, 'lasting');
});

test('a reason that is not given is an AbortError, the same as that of the source', (t) => {
  const { brief, either } = pair();
  brief.abort();
  t.is(either.signal.reason, brief.signal.reason);
  t.is((either.signal.reason as Error).name, 'AbortError');
});

test('without a second signal it is the first, and nothing listens', (t) => {
  const { signal } = new AbortController();
  const either = new EitherSignal(signal, undefined);
  t.is(either.signal, signal);
  t.deepEqual(listeners(signal), [0]);
  either.forget();
});

test('it listens once to each until it is forgotten, and is not aborted any more then', (t) => {
  const { lasting, brief, either } = pair();
  t.deepEqual(listeners(lasting.signal, brief.signal), [1, 1]);
  either.forget();
  t.deepEqual(listeners(lasting.signal, brief.signal), [0, 0]);
  either.forget();
  lasting.abort();
  brief.abort();
  t.false(either.signal.aborted);
});

slow('10,000 signals')('10,000 of them leave no listener on the lasting signal, and of those that are not forgotten each is aborted', (t) => {
  const lasting = new AbortController();
  const kept: EitherSignal[] = [];
  for (let use = 0; use < 10_000; use += 1) {
    const brief = new AbortController();
    const either = new EitherSignal(lasting.signal, brief.signal);
    if (use % 3 === 1) brief.abort();
    if (use % 1_000 === 999) kept.push(either);
    else either.forget();
    if (use % 3 === 1) t.deepEqual(listeners(brief.signal), kept.at(-1) === either ? [1] : [0]);
  }
  t.deepEqual(listeners(lasting.signal), [kept.length]);
  lasting.abort('all');
  t.true(kept.every(({ signal }) => signal.aborted));
  for (const either of kept) either.forget();
  t.deepEqual(listeners(lasting.signal), [0]);
});
