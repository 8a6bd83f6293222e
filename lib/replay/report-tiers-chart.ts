// The charts of tiers in a report, as Vega-Lite specifications: where prompts' tokens came from over time, and how long
// requests took to their first token, by source. Data in, plain objects out; the report draws them.

import { formatNumber } from '../base/format.js';
import { axisOfTime, chartColours, chartConfig, chartSizes } from './report-chart.js';
import type { Replay } from './result.js';

type Spec = Readonly<Record<string, unknown>>;

/** A colour for each source; tiers of other names take the last. */
const sourceColours: Readonly<Record<string, string>> = {
  device: chartColours.mapped, host: chartColours.host, disk: chartColours.fixed, redis: chartColours.remote,
  computed: chartColours.pool,
};

/** Undefined without tiers. */
export function tierChartsOf(replay: Replay): { readonly hits: Spec; readonly firstToken: Spec } | undefined {
  const { tiers } = replay.result;
  if (tiers === null) return undefined;
  const total = Math.max(1, Object.values(tiers.promptTokensBy).reduce((sum, tokens) => sum + tokens, 0));
  const names = Object.keys(tiers.promptTokensBy);
  const labels = Object.fromEntries(
    names.map((name) => [name, `${name} ${formatNumber((100 * tiers.promptTokensBy[name]!) / total, 1)} %`]));
  const color = (domain: readonly string[], legend: Spec | null): Spec => ({
    field: 'source', type: 'nominal', legend,
    scale: { domain, range: names.map((name) => sourceColours[name] ?? chartColours.used) },
  });
  return { hits: hitsChart(replay, names, labels, color), firstToken: firstTokenChart(replay, color(names, null)) };
}

function hitsChart(
  { sources, arrivals }: Replay, names: readonly string[], labels: Readonly<Record<string, string>>,
  color: (domain: readonly string[], legend: Spec | null) => Spec,
): Spec {
  const time = axisOfTime(arrivals, sources.at(-1)?.at ?? 1);
  const values = sources.flatMap(({ at, tokensBy }) => {
    const all = Object.values(tokensBy).reduce((sum, tokens) => sum + tokens, 0);
    return names.map((
      name, order,
    ) => ({ time: at / time.unit, share: (100 * tokensBy[name]!) / all, source: labels[name]!, order }));
  });
  return {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json',
    width: chartSizes.wide.width, height: 220, padding: 10, background: 'transparent', config: chartConfig,
    data: { values }, mark: { type: 'area', interpolate: 'step-after', fillOpacity: 0.85 },
    encoding: {
      x: {
        field: 'time', type: 'quantitative', scale: { domain: [0, time.end], nice: false },
        axis: { title: time.name, values: time.ticks, grid: false },
      },
      y: {
        field: 'share', type: 'quantitative', stack: 'zero', scale: { domain: [0, 100] },
        axis: { title: null, values: [0, 25, 50, 75, 100], labelExpr: "datum.label + ' %'", domain: false },
      },
      order: { field: 'order', type: 'quantitative' },
      color: color(names.map((name) => labels[name]!), {
        orient: 'top', title: null, offset: 14, columnPadding: 12, labelLimit: 0, symbolType: 'square',
        symbolOpacity: 1, symbolStrokeWidth: 0,
      }),
    },
  };
}

/** A bar from the 10th to the 90th percentile, with a mark and a number at the median. */
function firstTokenChart({ result }: Replay, color: Spec): Spec {
  const values = Object.entries(result.tiers!.firstTokenMsBy).map(([source, { requests, p10Ms, p50Ms, p90Ms }]) => ({
    source, p10: Math.max(p10Ms, 0.01), p50: Math.max(p50Ms, 0.01), p90: Math.max(p90Ms, 0.01),
    row: `${source}, ${formatNumber(requests)}`, text: `${formatNumber(p50Ms, p50Ms < 10 ? 2 : 0)} ms`,
  }));
  const most = Math.max(1, ...values.map(({ p90 }) => p90));
  const least = Math.min(1, ...values.map(({ p10 }) => p10));
  const decades = Array.from({ length: 12 }, (_, power) => 10 ** (power - 3)).filter((
    value,
  ) => value > least / 2 && value < most * 3);
  const x = { type: 'quantitative', scale: { type: 'log', domain: [least / 2, most * 3], nice: false } };
  return {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json',
    width: chartSizes.wide.width, height: { step: 44 }, padding: 10, background: 'transparent', config: chartConfig,
    data: { values },
    encoding: { y: {
      field: 'row', type: 'nominal', sort: null, axis: { title: null, domain: false, grid: false, labelLimit: 0 },
    } },
    layer: [
      {
        mark: { type: 'bar', height: 18, fillOpacity: 0.85 },
        encoding: { x: {
          ...x, field: 'p10',
          axis: { title: 'milliseconds to the first token: median, and 10 % to 90 % of requests', values: decades },
        }, x2: { field: 'p90' }, color },
      },
      {
        mark: { type: 'tick', thickness: 2.5, height: 28 },
        encoding: { x: { ...x, field: 'p50' }, color: { value: chartColours.ink } },
      },
      {
        mark: { type: 'text', align: 'left', dx: 8, fontSize: 12 },
        encoding: { x: { ...x, field: 'p90' }, text: { field: 'text' }, color: { value: chartColours.ink } },
      },
    ],
  };
}
