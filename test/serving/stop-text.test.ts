import test from 'ava';

import { Random } from '#internal/base/random.js';
import { StopText } from '#internal/serving/stop-text.js';
import { seedOf } from '../helpers/seed.js';

/** The text before the stop string that ends first, character by character. */
function plainlyStopped(text: string, stops: readonly string[]): string {
  for (let end = 0; end <= text.length; end += 1) {
    const found = stops.filter((stop) => text.slice(0, end).endsWith(stop)).sort((a, b) => b.length - a.length)[0];
    if (found !== undefined) return text.slice(0, end - found.length);
  }
  return text;
}

test('a stop string ends a text wherever its pieces begin and end', (t) => {
  const stop = new StopText(['END']);
  t.is(stop.push('a E'), 'a ');
  t.is(stop.push('N'), '');
  t.is(stop.push('E'), 'EN');
  t.is(stop.push('ND of it'), '');
  t.is(stop.stopString, 'END');
  t.is(stop.push('more') + stop.end(), '');
});

test('text that began like a stop string is there at the end', (t) => {
  const stop = new StopText(['\n\n', '<end>']);
  t.is(stop.push('a\n'), 'a');
  t.is(stop.end(), '\n');
  t.is(stop.end(), '');
  t.is(new StopText([]).push('all of it'), 'all of it');
});

const seed = seedOf('stop strings');

test(`random texts in random pieces end where a reader of single characters would end them (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const letters = (most: number): string => Array.from({ length: 1 + random.integer(most) }, () => 'ab🦊'.charAt(random.integer(4))).join('');
  let stopped = 0;
  for (let round = 0; round < 3_000; round += 1) {
    const stops = Array.from({ length: random.integer(4) }, () => letters(4));
    const text = letters(30);
    const stop = new StopText(stops);
    let given = '';
    for (let at = 0; at < text.length && stop.stopString === undefined;) {
      const length = 1 + random.integer(5);
      given += stop.push(text.slice(at, at + length));
      at += length;
    }
    given += stop.end();
    stopped += stop.stopString === undefined ? 0 : 1;
    t.is(given, plainlyStopped(text, stops), `${JSON.stringify(text)} with ${JSON.stringify(stops)}`);
  }
  t.true(stopped > 500 && stopped < 2_900);
});
