// SeenTexts: how much of a text was seen before, and whether a prompt ended there.

import test from 'ava';

import { SeenTexts } from '#internal/prefix/eviction/reuse-history.js';
import { join, run } from './texts.js';
import { slow } from '../runner/slow.js';

/** Reads a prompt and its answer; returns what was known of the prompt. */
function read(seen: SeenTexts, prompt: Int32Array, answer: Int32Array = new Int32Array(0), root = 0): { tokens: number; isEnd: boolean } {
  const text = join(prompt, answer);
  seen.read(root, text, text.length, prompt.length);
  return { tokens: seen.seenTokens, isEnd: seen.isEnd };
}

const nothing = { tokens: 0, isEnd: false };

test('of a text that begins as none did nothing is known, and all of one that comes again', (t) => {
  const seen = new SeenTexts(1);
  t.deepEqual(read(seen, run(0, 4_096)), nothing);
  t.deepEqual(read(seen, run(50_000, 4_096)), nothing);
  t.deepEqual(read(seen, run(0, 4_096)), { tokens: 4_096, isEnd: true });
});

test('what a text has in common with an earlier one is known to 256 tokens, or a 128th of it', (t) => {
  for (const common of [700, 4_000, 30_000, 100_000]) {
    const seen = new SeenTexts(1);
    read(seen, join(run(0, common), run(200_000, 50_000)));
    const { tokens } = read(seen, join(run(0, common), run(300_000, 50_000)));
    t.true(tokens <= common && tokens > common - Math.max(256, common / 64), `${tokens} of ${common}`);
  }
});

test('a prompt that goes on where one ended, with its answer or without, is told from one that leaves it before', (t) => {
  const seen = new SeenTexts(1);
  const prompt = run(0, 8_000);
  const answer = run(20_000, 1_000);
  read(seen, prompt, answer);
  t.deepEqual(read(seen, join(prompt, answer, run(30_000, 900))), { tokens: 8_960, isEnd: true });
  t.deepEqual(read(seen, join(prompt, run(40_000, 900))), { tokens: 7_936, isEnd: true });
  t.deepEqual(read(seen, join(run(0, 3_000), run(50_000, 900))), { tokens: 2_816, isEnd: false });
});

test('an answer that repeats an earlier one is no part of the prompt that was seen', (t) => {
  const seen = new SeenTexts(1);
  const answer = run(20_000, 2_000);
  read(seen, run(0, 4_096), answer);
  t.deepEqual(read(seen, run(0, 4_096), answer), { tokens: 4_096, isEnd: true });
});

test('texts of different roots are different texts', (t) => {
  const seen = new SeenTexts(1);
  read(seen, run(0, 4_096));
  t.deepEqual(read(seen, run(0, 4_096), undefined, 1), nothing);
});

slow('many texts')('texts far back are forgotten, those seen lately are not', (t) => {
  const seen = new SeenTexts(1);
  const text = new Int32Array(1_024);
  for (let name = 0; name < 200_000; name += 1) seen.read(0, text.fill(name), text.length, text.length);
  t.is(read(seen, text.fill(199_000)).tokens, 1_024);
  t.is(read(seen, text.fill(0)).tokens, 0);
});
