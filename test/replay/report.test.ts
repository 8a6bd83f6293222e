import test from 'ava';

import { isKvError } from '#internal/base/errors.js';
import { Reporter, reportFormatOf, shortPaths } from '#internal/replay/report.js';
import type { Replay, ReplayResult } from '#internal/replay/result.js';
import { factsOf, formatMicroseconds, formatSeconds, memoryBarsOf, verdictOf } from '#internal/replay/summary.js';
import { slow } from '../runner/slow.js';

const GIB = 2 ** 30;

function resultWith(changes: Partial<ReplayResult> = {}): ReplayResult {
  return {
    requests: 12, completedRequests: 10, refusedRequests: 1, tooLongRequests: 1, tooLargeRequests: 0, skippedLines: 2, promptTokens: 1_000, cachedTokens: 0,
    adoptedTokens: 0, aliasedTokens: 0, copiedTokens: 0, hitRate: 0, generatedTokens: 100, recomputedTokens: 50, recoveredTokens: 0,
    steps: 40, preemptions: 3, foregroundMaps: 20, backgroundMaps: 60, unmaps: 5,
    peakPhysicalBytes: 4 * GIB, peakPoolBytes: 8 * GIB, usedBytesAtPeak: 3 * GIB, pagedBytesAtPeak: 3.2 * GIB,
    longestTokens: 196_608, staticBytes: 384 * GIB, verify: 'sampled', verifiedTokens: 500, mismatches: 0, leakedPages: 0,
    stepOverheadUs: { p50: 0.8, p99: 120, max: 4_321 }, wallSeconds: 2, interrupted: false, seed: 1,
    trace: { name: 'a <b> & "c".csv', format: 'azure' }, model: { layers: 16, kvHeads: 8, headDim: 64, dtype: 'float16' },
    cache: {
      layout: 'per-layer', pageBytes: 2 ** 21, rowBytes: 2 ** 26, tokensPerRow: 2_048, tokenBytes: 32_768, maxBatch: 64,
      maxTokens: 196_608, memoryBytes: 8 * GIB, prefillTokensPerStep: 2_048,
      promptOnly: false, prefixCache: 'off',
    },
    tiers: null, driver: { kind: 'host', deviceName: 'host memory' },
    ...changes,
  };
}

const replayWith = (changes: Partial<ReplayResult> = {}, arrivals: Replay['arrivals'] = 'saturate'): Replay => ({
  result: resultWith(changes), arrivals, sources: [],
  timeline: Array.from({ length: 600 }, (_, at) => ({
    at: at * 25, poolBytes: 8 * GIB, mappedBytes: (at % 5) * GIB, usedBytes: (at % 4) * GIB, pagedBytes: (at % 4) * GIB,
  })),
});

slow('draws reports')('the chart names the static reservation at its own tick, above the axis of what is mapped', async (t) => {
  const svg = await (await Reporter.load()).render(replayWith(), 'svg');
  for (const label of ['384 GiB', '8 GiB', 'static reservation, 96 × as much', 'mapped, at most 4 GiB', 'used, 3 GiB of it', 'forward passes']) {
    t.true(svg.includes(`>${label}<`), label);
  }
  t.regex(svg, /<title>Memory over time: 4 GiB mapped at most, 384 GiB in a static reservation<\/title>/);
  t.regex(svg, /prefers-color-scheme: dark/);
  t.true((await (await Reporter.load()).render(replayWith({}, 'trace'), 'svg')).includes('>seconds of the trace<'));
});

slow('draws reports')('the page holds chart and summary, and escapes what it did not write', async (t) => {
  const page = await (await Reporter.load()).render(replayWith(), 'html');
  t.true(page.startsWith('<!doctype html>'));
  t.true(page.includes('a &lt;b&gt; &amp; &quot;c&quot;.csv'));
  t.notRegex(page, /<b> &/);
  t.regex(page, /<svg[^>]*role="img"/);
  t.regex(page, /10 completed · 1 refused: longer than [\d,]+ tokens · 1 unfinished · 2 broken lines skipped/);
});

const tiers = {
  prefillTokensPerSecond: 10_000, droppedTexts: 0, promotions: { complete: 3 }, tiers: [],
  promptTokensBy: { device: 300, host: 200, disk: 100, redis: 0, computed: 400 },
  firstTokenMsBy: {
    device: { requests: 3, p10Ms: 0, p50Ms: 1.5, p90Ms: 2 }, host: { requests: 2, p10Ms: 10, p50Ms: 20, p90Ms: 30 },
    computed: { requests: 4, p10Ms: 900, p50Ms: 1_000, p90Ms: 1_800 },
  },
};

slow('draws reports')('with tiers a report shows where prompts came from over time, and how long the first token took by source', async (t) => {
  const sources = Array.from({ length: 20 }, (_, at) => ({ at, tokensBy: { device: at, host: 20 - at, disk: 5, redis: 0, computed: 20 } }));
  const reporter = await Reporter.load();
  const replay = { ...replayWith({ tiers }), sources };
  const [svg, page] = [await reporter.render(replay, 'svg'), await reporter.render(replay, 'html')];
  for (const picture of [svg, page]) {
    for (const label of ['device 30 %', 'host 20 %', 'computed 40 %', 'host, 2', '1.5 ms', '1,000 ms']) t.true(picture.includes(`>${label}<`), label);
    t.notRegex(picture, /NaN|undefined/);
  }
  t.is(page.match(/<svg /g)!.length, 4);
  t.regex(page, /30 % device · 20 % host · 10 % disk · 0 % redis · 40 % computed/);
  t.regex(page, /1.5 ms device · 20 ms host · 1,000 ms computed; computing at 10,000 tokens\/s|1.5 ms device · 20 ms host · 1,000\.0 ms/);
  for (const format of ['html', 'svg'] as const) t.notRegex(await reporter.render({ ...replay, sources: [] }, format), /NaN|Infinity|undefined/);
});

test('paths of steps are written shortly, and say the same to a tenth of a pixel', (t) => {
  t.is(shortPaths('<path d="M0,337.786L1.55,337.786L1.55,333.356L3,330Z"/>'), '<path d="M0,337.8H1.6V333.4L3,330Z"/>');
  for (const other of ['<path d="M0,0C1,2,3,4,5,6Z"/>', '<path d="M0,0A5,5,0,1,1,2,2"/>', '<path d="M0,0h10v10"/>']) t.is(shortPaths(other), other);
});

test('the page has a chart for a phone, whose letters are as large there, and says the numbers of the moment that is pointed at', async (t) => {
  const page = await (await Reporter.load()).render(replayWith({}, 'trace'), 'html');
  const charts = [...page.matchAll(/<figure class="(\w+)"><svg[^>]*width="(\d+)"/g)].map(([, name, width]) => [name, Number(width)] as const);
  t.deepEqual(charts.map(([name]) => name), ['wide', 'narrow']);
  t.true(charts[1]![1] < 440, `${charts[1]![1]}: it is hardly scaled down on a phone`);
  t.regex(page, /\.wide \{ display: none; \} \.narrow \{ display: block; \}/);
  const looks = [...page.matchAll(/<g class="look" tabindex="-1">.*?<\/g>/g)].map(([look]) => look);
  t.is(looks.length, 120 + 45);
  t.regex(looks[60]!, /<text[^>]*>7\.5 seconds of the trace<\/text><text[^>]*>in the pool 8 GiB<\/text><text[^>]*>mapped 1 GiB<\/text><text[^>]*>used 1 GiB<\/text>/);
  t.regex(page, /\.look:is\(:hover,:focus\)>\*\{opacity:1\}/);
  t.notRegex(page, /<script/);
});

test('a replay in which nothing happened has a report too', async (t) => {
  const empty = { ...replayWith({ requests: 0, completedRequests: 0, peakPhysicalBytes: 0, peakPoolBytes: 0, usedBytesAtPeak: 0, steps: 0 }), timeline: [] };
  for (const format of ['html', 'svg'] as const) t.notRegex(await (await Reporter.load()).render(empty, format), /NaN|Infinity|undefined/);
});

test('without the plot library a report is refused before the replay, with the command that installs it', async (t) => {
  for (const absent of ['vega-lite', 'vega']) {
    const load = Reporter.load((name) => name === absent
      ? Promise.reject(Object.assign(new Error(`Cannot find package '${name}'`), { code: 'ERR_MODULE_NOT_FOUND' }))
      : Promise.resolve({}));
    const error = await t.throwsAsync(load);
    t.true(isKvError(error, 'KV_DEPENDENCY_MISSING'));
    t.regex(error!.message, new RegExp(`Run \`npm install ${absent}\``));
  }
  const broken = new Error('syntax');
  t.is(await t.throwsAsync(Reporter.load(() => Promise.reject(broken))), broken);
});

test('the format follows the name of the file', (t) => {
  t.deepEqual(['a.html', 'a.HTM', 'b.svg', 'c.png', 'svg'].map(reportFormatOf), ['html', 'html', 'svg', undefined, undefined]);
});

test('one sentence says whether memory was sound', (t) => {
  t.is(verdictOf(resultWith()), 'Done: 500 tokens read back, all right, no page leaked.');
  t.is(verdictOf(resultWith({ verify: 'off', verifiedTokens: 0 })), 'Done: nothing was read back, no page leaked.');
  t.is(verdictOf(resultWith({ interrupted: true })), 'Interrupted; until then: 500 tokens read back, all right, no page leaked.');
  t.is(verdictOf(resultWith({ mismatches: 1, leakedPages: 32 })), 'Memory is not sound: 1 token read back wrong, 32 pages leaked.');
});

test('facts and bars leave out what did not happen', (t) => {
  const facts = Object.fromEntries(factsOf(resultWith({
    requests: 10, refusedRequests: 0, tooLongRequests: 0, skippedLines: 0, preemptions: 0, foregroundMaps: 0, backgroundMaps: 0,
  })).map(({ name, value }) => [name, value]));
  t.like(facts, { Requests: '10 completed', Preemptions: 'none', 'Pages mapped': 'none', Tokens: '1,000 prompt · 100 generated' });
  t.deepEqual(memoryBarsOf(resultWith()).map(({ bytes }) => bytes / GIB), [384, 4, 3.2, 3]);
  t.deepEqual([0.84, 512, 4_321].map(formatMicroseconds), ['0.8 µs', '512 µs', '4.3 ms']);
  t.deepEqual([8.26, 125].map(formatSeconds), ['8.3 s', '2 min 5 s']);
});
