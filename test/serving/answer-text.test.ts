// Answers as text: stop strings wherever they begin and end in the tokens, text piece by piece, and what goes wrong in a tokenizer.

import { NaiveScheduler, OfflineScheduler, OnlineScheduler, type AnswerTokenizer, type GenerationRequest } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { TextPieces } from '#internal/llama/tokenizer.js';
import { refusesAsync } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { expectedTokens } from './pattern-engine.js';
import { collect, promptOf, resultOf, servingTests } from './serving-bench.js';
import { slow } from '../runner/slow.js';

/** Of each token some bytes of a text in which characters are split among tokens. */
const bytes = Buffer.from('a🦊büc');
const bytesOf = (token: number): Buffer => bytes.subarray(token % 5 * 2, token % 5 * 2 + 2);
const decode = (tokens: readonly number[]): string => Buffer.concat(tokens.map(bytesOf)).toString();
const tokenizer: AnswerTokenizer = { pieces: () => new TextPieces(decode) };

/** The tokens that come until a stop string is there, and the text before it. */
function stopped(tokens: readonly number[], stops: readonly string[]): { readonly tokens: number; readonly text: string; readonly stop: string | undefined } {
  for (let count = 1; count <= tokens.length; count += 1) {
    const pieces = tokenizer.pieces();
    let text = tokens.slice(0, count).map((token) => pieces.push(token)).join('');
    if (count === tokens.length) text += pieces.end();
    const found = stops.map((stop) => ({ stop, at: text.indexOf(stop) })).filter(({ at }) => at >= 0)
      .sort((a, b) => a.at + a.stop.length - b.at - b.stop.length || a.at - b.at)[0];
    if (found !== undefined) return { tokens: count, text: text.slice(0, found.at), stop: found.stop };
    if (count === tokens.length) return { tokens: count, text, stop: undefined };
  }
  throw new Error('no tokens');
}

const seed = seedOf('stop strings of answers');

servingTests(`answers end at their stop strings, with every scheduler and after preemptions (seed ${seed})`, {
  slots: 5, memoryBudgetBytes: 16 * 2 ** 16,
}, async ({ t, cache, engine }) => {
  const random = new Random(seed);
  const requests = Array.from({ length: 25 }, (_, key) => {
    const tokens = promptOf(1 + random.integer(60), key);
    const maxNewTokens = 1 + random.integer(60);
    const text = decode(expectedTokens(tokens, 60));
    const stopStrings = Array.from({ length: random.integer(3) }, () => {
      const at = random.integer(text.length - 3);
      return [...text.slice(at, at + 1 + random.integer(5))].join('');
    });
    return { tokens, maxNewTokens, stopStrings, tokenizer } satisfies GenerationRequest;
  });
  const schedulers = [new NaiveScheduler({ cache, engine }), new OfflineScheduler({ cache, engine, prefillTokensPerStep: 40 })];
  let stops = 0;
  for (const scheduler of schedulers) {
    const outcomes = await collect(scheduler.run(requests));
    requests.forEach(({ tokens, maxNewTokens, stopStrings }, index) => {
      const expected = stopped(expectedTokens(tokens, maxNewTokens), stopStrings);
      const { tokens: answer, text, stopString, stopToken, finishReason } = resultOf(outcomes[index]);
      t.deepEqual([text, stopString, answer.length], [expected.text, expected.stop, expected.tokens], `seed ${seed}, request ${index}`);
      t.deepEqual([finishReason, stopToken], [expected.stop === undefined ? 'length' : 'stop', undefined]);
      stops += expected.stop === undefined ? 0 : 1;
    });
  }
  t.true(stops > 4, `${stops} stopped`);
  const online = new OnlineScheduler({ cache, engine });
  await Promise.all(requests.map(async (request) => {
    const stream = online.submit(request);
    let read = '';
    for await (const piece of stream.pieces()) {
      t.not(piece, '');
      read += piece;
    }
    t.is(read, (await stream.result).text!);
    t.is(read, stopped(expectedTokens(request.tokens, request.maxNewTokens), request.stopStrings).text);
  }));
  await online.close();
}, slow('a random world of requests'));

servingTests('an answer is text only where a tokenizer is given, and has one reader', { slots: 2 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(20), maxNewTokens: 20 };
  const plain = scheduler.submit(request);
  const none: string[] = [];
  for await (const piece of plain.pieces()) none.push(piece);
  t.deepEqual(none, []);
  t.like(await plain.result, { text: undefined, stopString: undefined, logProbabilities: undefined });
  const read = scheduler.submit({ ...request, tokenizer });
  read.pieces();
  t.throws(() => read.pieces(), { code: 'KV_STREAM_STATE' });
  t.throws(() => read[Symbol.asyncIterator](), { code: 'KV_STREAM_STATE' });
  const [stopToken] = expectedTokens(request.tokens, 20).slice(10);
  const { tokens, text } = await scheduler.submit({ ...request, tokenizer, stopTokens: [stopToken!] }).result;
  t.is(text, decode([...tokens]), 'a stop token ends the text, and is not in it');
  const left = scheduler.submit({ ...request, maxNewTokens: 300, tokenizer });
  for await (const piece of left.pieces()) if (piece !== '') break;
  await t.throwsAsync(left.result, { code: 'KV_ABORTED' });
  const finished = scheduler.submit({ ...request, maxNewTokens: 300, tokenizer });
  for await (const piece of finished.pieces()) if (piece !== '') finished.finish();
  const result = await finished.result;
  t.is(result.text, decode([...result.tokens]));
  await read.result;
  await scheduler.close();
});

servingTests('a tokenizer that fails ends its own request alone', { slots: 4 }, async ({ t, cache, engine }) => {
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: promptOf(20), maxNewTokens: 20, stopStrings: ['zzz'] };
  const wrong = (pieces: () => unknown): Promise<unknown> =>
    scheduler.submit({ ...request, tokenizer: { pieces: pieces as AnswerTokenizer['pieces'] } }).result;
  const noText = new Error('no text');
  const fails = (): never => { throw noText; };
  const other = scheduler.submit({ tokens: promptOf(30, 2), maxNewTokens: 30, tokenizer });
  for (const pieces of [fails, () => ({ push: fails, end: () => '' }), () => ({ push: () => '', end: fails })]) {
    const error = await t.throwsAsync(wrong(pieces), { code: 'KV_CALLBACK_FAILED' });
    t.like(error, { details: { option: 'tokenizer' }, cause: noText });
  }
  await t.throwsAsync(wrong(() => undefined), { code: 'KV_CALLBACK_FAILED' });
  await refusesAsync(t, wrong(() => ({ push: () => 1, end: () => '' })), 'KV_INVALID_OPTION', { option: 'tokenizer', received: 1 });
  const own = scheduler.submit({ ...request, tokenizer: { pieces: () => ({ push: () => { own.cancel(); return ''; }, end: () => '' }) } });
  await t.throwsAsync(own.result, { code: 'KV_ABORTED' });
  const emptied = scheduler.submit({ ...request, tokenizer: { pieces: () => ({ push: () => { cache.prefixes.reset({ preempt: true }); return '.'; }, end: () => '' }) } });
  t.is((await emptied.result).text, '.'.repeat(20), 'its slot was taken away each time');
  t.is((await other.result).tokens.length, 30);
  await scheduler.close();
});
