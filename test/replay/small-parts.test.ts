import test from 'ava';

import { MemoryTimeline, type MemorySample } from '#internal/replay/memory-timeline.js';
import { RequestFeed } from '#internal/replay/request-feed.js';
import { StampRuns } from '#internal/replay/stamps.js';
import { StepTimes } from '#internal/replay/replay-scheduler.js';
import type { TraceRequest } from '#internal/replay/trace-request.js';

test('StampRuns joins neighbours, grows, and is emptied', (t) => {
  const runs = new StampRuns();
  runs.push(0, 10);
  runs.push(10, 5);
  runs.push(20, 1);
  t.deepEqual([runs.length, runs.tokensOf(0), runs.fromOf(1)], [2, 15, 20]);
  for (let from = 100; from < 10_000; from += 10) runs.push(from, 1);
  t.is(runs.length, 2 + 990);
  t.is(runs.fromOf(991), 9_990);
  runs.clear();
  t.is(runs.length, 0);
});

test('StepTimes: percentiles within 3.2 %, the maximum exact', (t) => {
  const times = new StepTimes();
  t.deepEqual([times.percentileUs(0.5), times.maxUs], [0, 0]);
  for (let us = 1; us <= 1_000; ++us) times.record(us / 1e3);
  t.true(Math.abs(times.percentileUs(0.5) / 500 - 1) < 0.032, `${times.percentileUs(0.5)}`);
  t.true(Math.abs(times.percentileUs(0.99) / 990 - 1) < 0.032, `${times.percentileUs(0.99)}`);
  t.deepEqual([times.maxUs, times.steps], [1_000, 1_000]);
  times.record(0);
  times.record(1e12);
  t.is(times.percentileUs(1), times.maxUs, 'beyond its range it stays in it');
});

const sample = (mappedBytes: number, usedBytes: number, poolBytes = 6_000): MemorySample =>
  ({ poolBytes, mappedBytes, usedBytes, pagedBytes: usedBytes + 1 });

test('MemoryTimeline keeps every peak, and never more than 1,024 points', (t) => {
  const timeline = new MemoryTimeline(1);
  for (let step = 1; step <= 100_000; ++step) timeline.record(step, sample(step === 77_777 ? 5_000 : 100, step % 10));
  const points = timeline.points();
  t.true(points.length > 512 && points.length <= 1_024, `${points.length} points`);
  t.deepEqual(points.filter(({ mappedBytes }) => mappedBytes === 5_000).map(({ at }) => at), [77_777 - (77_777 % 128)]);
  t.deepEqual([timeline.peak.mappedBytes, timeline.peakPoolBytes], [5_000, 6_000]);
  t.true(points.every(({ at }, index) => at === index * 128), 'points are evenly spaced');
});

test('MemoryTimeline: nothing runs in a pause, and the pool keeps what it has', (t) => {
  const timeline = new MemoryTimeline(25);
  for (const at of [0, 25, 50_000]) timeline.record(at, sample(10, 5));
  const points = timeline.points();
  t.deepEqual([points[0]!.mappedBytes, points[1]!.mappedBytes, points.at(-1)!.mappedBytes], [10, 0, 10]);
  t.true(points.every(({ poolBytes }) => poolBytes === 6_000));
});

test('MemoryTimeline: among equal peaks the most used counts', (t) => {
  const timeline = new MemoryTimeline(1);
  for (const usedBytes of [5, 9, 7]) timeline.record(usedBytes, sample(10, usedBytes));
  t.deepEqual(timeline.peak, sample(10, 9));
});

const request = (line: number): TraceRequest => ({ line, arrivalMs: line, promptTokens: 1, outputTokens: 1 });

test('RequestFeed reads ahead, a bounded number, and closes what it read from', async (t) => {
  let made = 0;
  let isClosed = false;
  const trace = {
    *[Symbol.iterator]() { for (;;) yield request(++made); },
    close() { isClosed = true; },
  };
  const feed = new RequestFeed({ trace, ahead: 10, limit: 100 });
  t.true(feed.isLow);
  await feed.fill();
  t.deepEqual([made, feed.isLow, feed.peek()?.line, feed.fraction], [40, false, 1, 0]);
  for (let line = 1; line <= 100; ++line) {
    if (feed.isLow) await feed.fill();
    t.is(feed.take()?.line, line);
  }
  t.deepEqual([feed.take(), feed.isLow, feed.fraction, made, isClosed, feed.takenRequests], [undefined, false, 1, 100, true, 100]);
});

test('RequestFeed: a signal ends a trace that is being waited for; another error is thrown', async (t) => {
  const stop = new AbortController();
  let reject = (_: Error): void => undefined;
  const trace = {
    [Symbol.asyncIterator]: () => ({ next: () => new Promise<IteratorResult<TraceRequest>>((_, fail) => { reject = fail; }) }),
    close: () => reject(new Error('closed')),
  };
  const feed = new RequestFeed({ trace, ahead: 1, signal: stop.signal });
  const filled = feed.fill();
  stop.abort();
  await filled;
  t.deepEqual([feed.isLow, feed.peek()], [false, undefined]);

  const broken = { async *[Symbol.asyncIterator]() { yield request(1); throw new Error('line 2'); } };
  await t.throwsAsync(new RequestFeed({ trace: broken, ahead: 1 }).fill(), { message: 'line 2' });
});
