import test from 'ava';

import { Random } from '#internal/base/random.js';
import { ScoreHeap } from '#internal/prefix/importance/score-heap.js';
import { ScorePlacement, type ExtentPlace } from '#internal/prefix/importance/score-placement.js';
import { seedOf } from '../../helpers/seed.js';

const seed = seedOf('score placement');

test(`the top of a heap is that of a full sort, over 10,000 random updates (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const heap = new ScoreHeap();
  const model = new Map<number, number>();
  for (let turn = 0; turn < 10_000; turn += 1) {
    const extent = random.integer(200);
    if (random.chance(0.3)) {
      t.is(heap.delete(extent), model.delete(extent));
    } else {
      const score = random.integer(50);
      heap.set(extent, score);
      model.set(extent, score);
    }
    const [least] = [...model].toSorted(([a, scoreA], [b, scoreB]) => scoreA - scoreB || a - b);
    t.is(heap.top, least?.[0]);
    t.is(heap.size, model.size);
    t.is(heap.scoreOf(extent), model.get(extent));
    t.is(heap.has(extent), model.has(extent));
  }
});

test('an extent with two important tokens and two accesses has the only room before one with one and three', (t) => {
  const [a, b] = [1, 2];
  const placement = new ScorePlacement({ deviceTokens: 16, hostTokens: 16 });
  for (let access = 0; access < 3; access += 1) placement.access(a, 16, 1);
  t.is(placement.placeOf(a), 'device');
  t.deepEqual(placement.access(b, 16, 2), [{ extent: b, from: 'disk', to: 'host' }]);
  t.deepEqual(placement.access(b, 16, 2), [{ extent: b, from: 'host', to: 'device' }, { extent: a, from: 'device', to: 'host' }]);
  t.deepEqual([placement.scoreOf(a), placement.scoreOf(b)], [3, 4]); // by frequency alone A would have stayed
  t.deepEqual(placement.access(a, 16, 1), []);
  t.deepEqual(placement.access(a, 16, 1), [{ extent: a, from: 'host', to: 'device' }, { extent: b, from: 'device', to: 'host' }]);
  t.deepEqual([placement.placeOf(a), placement.placeOf(b)], ['device', 'host']);
});

test('what neither place has room for is on the disk alone, and nothing is written for it', (t) => {
  const placement = new ScorePlacement({ deviceTokens: 16, hostTokens: 16 });
  for (const [extent, important] of [[1, 8], [2, 4], [3, 2]] as const) placement.access(extent, 16, important);
  t.deepEqual([1, 2, 3].map((extent) => placement.placeOf(extent)), ['device', 'host', 'disk']);
  const changes = placement.access(3, 16, 16);
  t.deepEqual(changes, [{ extent: 3, from: 'disk', to: 'device' }, { extent: 1, from: 'device', to: 'host' }, { extent: 2, from: 'host', to: 'disk' }]);
  placement.forget(1);
  t.is(placement.placeOf(1), undefined);
  t.is(placement.scoreOf(1), 0);
  t.deepEqual(placement.access(2, 16, 4), [{ extent: 2, from: 'disk', to: 'host' }]);
  t.deepEqual(placement.access(4, 17, 17), [], 'it fits nowhere');
});

test('counts halve from time to time, so that what was popular once gives way', (t) => {
  const placement = new ScorePlacement({ deviceTokens: 16, hostTokens: 0, halfLifeAccesses: 8 });
  for (let access = 0; access < 8; access += 1) placement.access(1, 16, 1);
  t.is(placement.scoreOf(1), 4);
  for (let access = 0; access < 4; access += 1) placement.access(2, 16, 1);
  t.is(placement.placeOf(1), 'device', 'as much is not more');
  placement.access(2, 16, 1);
  t.is(placement.placeOf(2), 'device');
});

test(`each place keeps within its room, moves are told as they are, and no extent below scores more (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const deviceTokens = 5 * 16;
  const hostTokens = 9 * 16;
  const placement = new ScorePlacement({ deviceTokens, hostTokens, halfLifeAccesses: 300 });
  const places = new Map<number, ExtentPlace>();
  for (let turn = 0; turn < 3_000; turn += 1) {
    const extent = random.integer(30);
    if (random.chance(0.02)) {
      placement.forget(extent);
      places.delete(extent);
      continue;
    }
    for (const { extent: moved, from, to } of placement.access(extent, 16, 1 + extent % 7)) {
      t.is(places.get(moved) ?? 'disk', from);
      places.set(moved, to);
    }
    places.set(extent, places.get(extent) ?? 'disk');
    const at = (place: ExtentPlace): number[] => [...places].filter(([, now]) => now === place).map(([one]) => one);
    for (const [one, place] of places) t.is(placement.placeOf(one), place);
    t.true(16 * at('device').length <= deviceTokens && 16 * at('host').length <= hostTokens);
    // The one accessed is where its score says: no one above it scores less, where it is not there.
    if (places.get(extent) !== 'device' && at('device').length * 16 === deviceTokens) {
      t.true(Math.min(...at('device').map((one) => placement.scoreOf(one))) >= placement.scoreOf(extent));
    }
  }
});
