// What the benchmarks share: times of many runs as percentiles, and the shape of a result. Absolute times are of the machine
// they were taken on; what carries over are ratios within one run.

export interface BenchResult {
  readonly name: string;
  /** What was measured, with its unit. */
  readonly value: string;
  /** Against what: a goal, the bare system call, the naive way. */
  readonly against: string;
  /** undefined: nothing to compare with. */
  readonly isGoalMet: boolean | undefined;
  readonly numbers: Readonly<Record<string, number>>;
}

export interface Percentiles {
  readonly p50: number;
  readonly p99: number;
  readonly max: number;
}

/** `p50` of an even number of values is the mean of the two middle ones. All are NaN without values. */
export function percentiles(values: Iterable<number>): Percentiles {
  const sorted = Float64Array.from(values).sort();
  const at = (index: number): number => sorted[Math.min(sorted.length - 1, Math.floor(index))] ?? NaN;
  const last = sorted.length - 1;
  return { p50: (at(last / 2) + at((last + 1) / 2)) / 2, p99: at(0.99 * sorted.length), max: at(last) };
}

export function median(values: Iterable<number>): number {
  return percentiles(values).p50;
}

/** Calls `run` and returns the microseconds it took. */
export function microseconds(run: () => void): number {
  const start = process.hrtime.bigint();
  run();
  return Number(process.hrtime.bigint() - start) / 1e3;
}

export function format(value: number, digits = 1): string {
  return value.toLocaleString('en', { maximumFractionDigits: digits });
}
