import test from 'ava';

import { median, percentiles } from './bench/measure.js';

test('the median of an even number of values is the mean of the two middle ones', (t) => {
  t.is(median([1]), 1);
  t.is(median([4, 1]), 2.5);
  t.is(median([9, 1, 4]), 4);
  t.is(median([9, 1, 4, 5]), 4.5);
  t.is(median([]), NaN);
});

test('the 99th percentile has at most one of a hundred values above it', (t) => {
  const values = Array.from({ length: 1_000 }, (_, at) => 999 - at);
  t.deepEqual(percentiles(values), { p50: 499.5, p99: 990, max: 999 });
  t.deepEqual(percentiles([3]), { p50: 3, p99: 3, max: 3 });
});
