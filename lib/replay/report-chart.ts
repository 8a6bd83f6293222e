// The chart of a report: memory over time as a Vega-Lite specification. A static reservation is tens of times what is
// mapped, so the memory axis is broken: linear from zero to above the peak, then a gap, then one line for the
// reservation, at its own tick. Data in, a plain object out; the report draws it.

import { formatBytes, formatNumber } from '../base/format.js';
import type { Replay, ReplayResult } from './result.js';

/** Colours of the light theme, each used for one thing only: the report's stylesheet swaps them in the dark. */
export const chartColours = {
  ink: '#1f2329',
  faint: '#656d77',
  grid: '#e4e6ea',
  fixed: '#b35901',
  mapped: '#4a8fe1',
  pool: '#a9b1bb',
  used: '#1c4f94',
  host: '#2f9e77',
  remote: '#8e5bd0',
} as const;

const CHART_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

/** How large a chart is. */
export interface ChartSize {
  /** Of the plot, without axes. */
  readonly width: number;
  readonly height: number;
  /** Ticks of the time axis, about. */
  readonly ticks: number;
  /** Columns of the legend; 0: as many as it has entries. */
  readonly legendColumns: number;
  /** Moments that can be pointed at. */
  readonly slices: number;
}

export const chartSizes = {
  wide: { width: 840, height: 340, ticks: 8, legendColumns: 0, slices: 120 },
  /** For a phone: its letters are as large there as the page's. */
  narrow: { width: 240, height: 250, ticks: 3, legendColumns: 1, slices: 45 },
} as const satisfies Readonly<Record<string, ChartSize>>;

/** Where the reservation's line, the gap below it, and the end of the plot lie, as shares of the linear part. */
const BREAK = { from: 1.05, to: 1.1, line: 1.16, end: 1.2 };

type Spec = Readonly<Record<string, unknown>>;
type Series = 'fixed' | 'pool' | 'mapped' | 'used';

/** The linear part of an axis. */
export interface Axis {
  /** How many of the data's own unit (bytes, steps, ms) are 1 on the axis. */
  readonly unit: number;
  /** What 1 is called. */
  readonly name: string;
  readonly ticks: readonly number[];
  readonly end: number;
}

export function chartOf(
  { result, timeline, arrivals }: Replay, { width, height, ticks, legendColumns }: ChartSize = chartSizes.wide,
): Spec {
  const memory = memoryAxis(Math.max(result.peakPoolBytes, 1));
  const end = Math.max(1, timeline.at(-1)?.at ?? 1);
  const time = axisOfTime(arrivals, end, ticks);
  const values = timeline.map(({ at, poolBytes, mappedBytes, usedBytes }) => ({
    time: at / time.unit, pool: poolBytes / memory.unit, mapped: mappedBytes / memory.unit,
    used: Math.min(usedBytes, mappedBytes) / memory.unit, // shared tokens count several times
  }));
  const names = seriesNames(result);
  const area = (field: Exclude<Series, 'fixed'>, fillOpacity: number): Spec => ({
    mark: { type: 'area', interpolate: 'step-after', fillOpacity, line: { strokeWidth: 1.2 } },
    encoding: { y: { field, type: 'quantitative' }, color: { datum: names[field] } },
  });
  return {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json',
    width, height, padding: 10, background: 'transparent', config: chartConfig,
    data: { values },
    encoding: {
      x: {
        field: 'time', type: 'quantitative', scale: { domain: [0, time.end], nice: false },
        axis: { title: time.name, values: time.ticks, grid: false },
      },
      y: {
        type: 'quantitative', scale: { domain: [0, memory.end * BREAK.end], nice: false },
        axis: {
          title: null, values: [...memory.ticks, memory.end * BREAK.line], domain: false,
          labelExpr:
            `datum.value > ${memory.end} ? '${formatBytes(result.staticBytes)}' : datum.label + ' ${memory.name}'`,
        },
      },
      color: {
        type: 'nominal',
        scale: { domain: Object.values(names), range: Object.keys(names).map((name) => chartColours[name as Series]) },
        legend: {
          orient: 'top', title: null, offset: 14, columns: legendColumns, columnPadding: 4, labelLimit: 0,
          symbolType: 'square', symbolOpacity: 1, symbolStrokeWidth: 0,
        },
      },
    },
    layer: [
      area('pool', 0.2),
      area('mapped', 0.35),
      area('used', 0.8),
      {
        data: { values: [{}] }, mark: { type: 'rule', strokeWidth: 2 },
        encoding: {
          x: { value: 0 }, x2: { value: width }, y: { datum: memory.end * BREAK.line }, color: { datum: names.fixed },
        },
      },
      ...[BREAK.from, BREAK.to].map((share) => breakMark(memory.end * share, memory.end * 0.01)),
    ],
  };
}

/** The entries of the legend, which also give the numbers. */
function seriesNames(result: ReplayResult): Readonly<Record<Series, string>> {
  const times = result.staticBytes / Math.max(result.peakPhysicalBytes, 1);
  return {
    fixed: `static reservation, ${formatNumber(times, times < 10 ? 1 : 0)} × as much`,
    pool: 'kept for later',
    mapped: `mapped, at most ${formatBytes(result.peakPhysicalBytes)}`,
    used: result.usedBytesAtPeak > result.peakPhysicalBytes
      ? `used, as ${formatBytes(result.usedBytesAtPeak)} of tokens`
      : `used, ${formatBytes(result.usedBytesAtPeak)} of it`,
  };
}

/** One of the two slanted strokes across the axis that say "the scale is interrupted here". */
function breakMark(at: number, slant: number): Spec {
  return {
    data: { values: [{}] }, mark: { type: 'rule', strokeWidth: 1.5 },
    encoding: {
      x: { value: -6 }, x2: { value: 6 }, y: { datum: at - slant }, y2: { datum: at + slant },
      color: { value: chartColours.faint },
    },
  };
}

function memoryAxis(peakBytes: number): Axis {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(peakBytes) / 10)));
  const unit = 1024 ** power;
  return { unit, name: ['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]!, ...ticksTo(peakBytes / unit, 4) };
}

/** The unit of the time axis: forward passes, or the trace's own clock in units that suit its length. */
export function timeUnitOf(arrivals: Replay['arrivals'], end: number): Pick<Axis, 'unit' | 'name'> {
  if (arrivals !== 'trace') return { unit: 1, name: 'forward passes' };
  if (end < 180_000) return { unit: 1_000, name: 'seconds of the trace' };
  return end < 10_800_000 ? { unit: 60_000, name: 'minutes of the trace' }
    : { unit: 3_600_000, name: 'hours of the trace' };
}

/** Of what `at` is: steps, or the trace's time in ms. */
export function axisOfTime(arrivals: Replay['arrivals'], end: number, ticks = chartSizes.wide.ticks as number): Axis {
  const { unit, name } = timeUnitOf(arrivals, end);
  return { unit, name, ...ticksTo(end / unit, ticks), end: end / unit };
}

/** About `wanted` round steps from zero that reach past `value`. */
function ticksTo(value: number, wanted: number): Pick<Axis, 'ticks' | 'end'> {
  const rough = value / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((round) => round * power).find((round) => round >= rough) ?? 10 * power;
  const ticks = Array.from({ length: Math.floor(value / step + 1e-9) + 1 }, (_, tick) => tick * step);
  return { ticks, end: Math.max(value, ticks.at(-1)!) };
}

export const chartConfig: Spec = {
  font: CHART_FONT,
  view: { stroke: null },
  axis: {
    labelColor: chartColours.faint, labelFontSize: 12, labelPadding: 8,
    titleColor: chartColours.faint, titleFontSize: 12, titleFontWeight: 'normal', titlePadding: 12,
    gridColor: chartColours.grid, domainColor: chartColours.grid, ticks: false,
  },
  legend: { labelColor: chartColours.ink, labelFontSize: 12 },
};
