// ReuseRates: what a row is worth by what was seen of texts like it.

import test from 'ava';

import { ageBuckets, requestClass, ReuseRates, textClass, textClasses, turns } from '#internal/prefix/eviction/reuse-rates.js';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const longAnswers = requestClass(100, 1_000);
const shortAnswers = requestClass(100, 10);
const ages = [0, 1, 2, 5, 100, 3_000, 1e6];

test('before anything is learnt all classes are worth the same, and old text less than young', (t) => {
  const rates = new ReuseRates();
  for (let ofClass = 0; ofClass < textClasses; ofClass += 1) {
    ages.forEach((age, at) => {
      t.is(rates.value(ofClass, age), rates.value(0, age));
      if (at > 0) t.true(rates.value(ofClass, age) < rates.value(ofClass, ages[at - 1]!));
    });
  }
});

/** Each release brings a text of each class, which is used again at the next release or never. */
function learn(rates: ReuseRates, releases: number, reused: number, unused: number): void {
  for (let now = 1; now <= releases; now += 1) {
    rates.moveTo(now);
    if (now > 1) {
      rates.leave(reused, 0, 1, true);
      rates.leave(unused, 0, 1, false);
      rates.enter(unused, 1, 1);
    }
    rates.enter(reused, 0, 1);
    rates.enter(unused, 0, 1);
  }
}

test('what is learnt of a trait counts for classes that were never seen', (t) => {
  const rates = new ReuseRates();
  learn(rates, 320, textClass(1, turns.first, longAnswers), textClass(1, turns.first, shortAnswers));
  t.true(rates.value(textClass(1, turns.first, longAnswers), 1) > 3 * rates.value(textClass(1, turns.first, shortAnswers), 1));
  t.true(rates.value(textClass(1, turns.continues, longAnswers), 1) > 2 * rates.value(textClass(1, turns.continues, shortAnswers), 1));
});

test('it follows texts that change their ways', (t) => {
  const rates = new ReuseRates();
  const [long, short] = [longAnswers, shortAnswers].map((ofRequest) => textClass(1, turns.first, ofRequest)) as [number, number];
  learn(rates, 640, long, short);
  t.true(rates.value(long, 1) > rates.value(short, 1));
  const later = new Random(1);
  for (let now = 641; now <= 640 + 2_048; now += 1) {
    rates.moveTo(now);
    rates.leave(long, 0, 1, false);
    rates.enter(long, 0, 1);
    rates.leave(short, 0, 1, later.chance(0.9));
    rates.enter(short, 0, 1);
  }
  t.true(rates.value(long, 1) < rates.value(short, 1));
});

const seed = seedOf('whatever is counted');
slow('many random counts')(`whatever is counted, a row is worth a finite number above 0 (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const rates = new ReuseRates();
  let now = 0;
  for (let round = 0; round < 400; round += 1) {
    const ofClass = random.integer(textClasses);
    const age = random.integer(ageBuckets);
    const weight = 10 ** (random.integer(12) - 6);
    const isReused = random.chance(0.5);
    rates.enter(ofClass, age, weight);
    for (let steps = random.integer(4) === 0 ? 5_000 : random.integer(40); steps > 0; steps -= 1) rates.moveTo(++now);
    rates.leave(ofClass, age, weight, isReused);
  }
  rates.moveTo(now + 32 - (now % 32));
  for (let ofClass = 0; ofClass < textClasses; ofClass += 1) {
    for (const age of ages) {
      const value = rates.value(ofClass, age);
      t.true(value > 0 && value < Infinity, `class ${ofClass}, age ${age}: ${value}`);
    }
  }
});
