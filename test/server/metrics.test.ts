// What is watched: the series of a server that has answered, and that the dashboard and the alerts in the docs name no others.

import { readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';
import { Registry } from 'prom-client';

import { hostTier, OnlineScheduler, redisTier } from 'virtual-kv';
import { registerServingMetrics } from 'virtual-kv/prometheus';

import { dropFromDevice } from '../cache/tiers/device-index.js';
import { ScriptEngine } from './script-engine.js';
import { ServingWorld, withServer } from './serving-world.js';

const root = path.resolve(__dirname, '..', '..');
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');

/** Values by series, as in the text that is scraped. */
function seriesOf(text: string): Map<string, number> {
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return new Map(lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]));
}

async function scrape(world: ServingWorld): Promise<Map<string, number>> {
  const response = await fetch(`${world.url}/metrics`);
  return seriesOf(await response.text());
}

test('a scrape counts requests, tokens and times, and a histogram adds up', (t) => withServer(t, { slots: 2 }, async (world) => {
  const prompt = 'a prompt of some tokens';
  for (let request = 0; request < 3; request += 1) {
    t.is((await world.post('/v1/completions', { prompt, max_tokens: 5 })).status, 200);
  }
  t.is((await world.post('/v1/completions', { prompt, max_tokens: 5, stop: script })).status, 200);
  t.is((await world.post('/v1/completions', { prompt: '' })).status, 400);
  const series = await scrape(world);
  const value = (name: string): number | undefined => series.get(`virtual_kv_${name}`);
  t.is(value('serving_requests_total{outcome="completed"}'), 4);
  t.is(value('serving_prompt_tokens_total'), 4 * prompt.length);
  t.is(value('serving_requests{state="running"}'), 0);
  t.is(value('serving_waiting_limit'), 1_024);
  t.is(value('server_responses_total{status="200"}'), 4);
  t.is(value('server_responses_total{status="400"}'), 1);
  t.true(value('server_connections')! >= 1);
  t.is(value('slots{state="active"}'), 0);
  for (const name of ['queue_wait', 'time_to_first_token', 'request']) {
    t.is(value(`serving_${name}_seconds_count`), 4, name);
    t.is(value(`serving_${name}_seconds_bucket{le="+Inf"}`), 4, name);
  }
  const { times, totals } = world.scheduler;
  t.is(value('serving_time_between_tokens_seconds_count'), totals.generatedTokens - 4);
  t.is(value('serving_pass_seconds_sum{call="decode"}'), times.decode.sumMs / 1e3);
  t.is(times.decode.sumMs, totals.decodeMs);
  t.is(times.prefill.sumMs, totals.prefillMs);
  const buckets = [...series].filter(([name]) => name.startsWith('virtual_kv_serving_time_between_tokens_seconds_bucket')).map(([, count]) => count);
  t.deepEqual(buckets, buckets.toSorted((a, b) => a - b));
}));

const script = ['quick', 'x'];

/** Names of series in an expression, without functions and labels. */
const namesIn = (text: string): string[] => [...text.matchAll(/\bvirtual_kv_\w+/g)].map(([name]) => name);

for (const file of ['docs/grafana-dashboard.json', 'docs/operate.md']) {
  const tiers = [hostTier({ bytes: 2 ** 24 }), redisTier({ url: 'redis://127.0.0.1:1' })]; // a store that is not there has all series too
  test(`${file} names series that a server has, and labels that they have`, (t) => withServer(t, { tiers }, async (world) => {
    const { prefixes } = world.cache;
    await world.post('/v1/completions', { prompt: 'a prompt of some tokens', max_tokens: 2 });
    await prefixes.tiers!.settled();
    dropFromDevice(world.cache);
    const tokens = [...Buffer.from('a prompt of some tokens')];
    t.true((await prefixes.prefetch({ tokens })).promotedTokens > 0);
    const series = [...(await scrape(world)).keys()];
    series.push('virtual_kv_tiers_staging_bytes{memory="pageable"}'); // of devices: the server's driver is host, which has none (prometheus.test.ts)
    const names = new Set(series.map((name) => name.replace(/\{.*/, '')));
    const wanted = namesIn(read(file).replaceAll('virtual_kv_`', ''));
    t.true(wanted.length >= 8);
    for (const name of wanted) t.true(names.has(name), name);
    for (const [, name, label, value] of read(file).replaceAll('\\"', '"').matchAll(/(virtual_kv_\w+)\{(?:instance=~"[^"]*", ?)?(\w+)="(\w+)"/g)) {
      if (label === 'status') continue; // of answers that there were none of
      t.true(series.some((each) => each.startsWith(`${name}{`) && each.includes(`${label}="${value}"`)), `${name}{${label}="${value}"}`);
    }
  }));
}

test('every panel of the dashboard has a title, what it shows and a target', (t) => {
  const { panels } = JSON.parse(read('docs/grafana-dashboard.json')) as {
    panels: { type: string; title: string; description?: string; targets?: { expr: string }[]; gridPos: { x: number; w: number } }[];
  };
  for (const { type, title, description, targets, gridPos } of panels) {
    t.true(title.length > 3 && gridPos.x + gridPos.w <= 24, title);
    if (type !== 'row') t.true(description !== undefined && targets!.length > 0 && targets!.every(({ expr }) => expr.includes('$instance')), title);
  }
});

test('schedulers of one register are told apart by labels, and a closed one goes by itself', async (t) => {
  const world = new ServingWorld();
  const other = new OnlineScheduler({ cache: world.cache, engine: new ScriptEngine(), maxWaiting: 7 });
  const register = new Registry();
  const leave = registerServingMetrics(world.scheduler, { register, labels: { worker: '1' } });
  registerServingMetrics(other, { register, labels: { worker: '2' } });
  t.throws(() => registerServingMetrics(other, { register, labels: { worker: '2' } }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => registerServingMetrics(other, { register, labels: { call: 'x' } }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => registerServingMetrics({} as never), { code: 'KV_INVALID_OPTION' });
  const limits = async (): Promise<(number | undefined)[]> => {
    const series = seriesOf(await register.metrics());
    return ['1', '2'].map((worker) => series.get(`virtual_kv_serving_waiting_limit{worker="${worker}"}`));
  };
  t.deepEqual(await limits(), [1_024, 7]);
  await other.close();
  t.deepEqual(await limits(), [1_024, undefined]);
  t.throws(() => registerServingMetrics(other, { register }), { code: 'KV_CLOSED' });
  leave();
  t.is((await register.metrics()).trim(), '');
  await world.close();
});
