// The fields of a trace line: checks and conversions that both formats share. A wrong value is thrown as a
// LineProblem, whose text ends the sentence "FILE, line 7: …"; the readers add the file and the line.

import { printable } from '../base/format.js';

/** Why a line cannot be used. Never leaves lib/replay: the readers turn it into KV_TRACE_INVALID, or skip the line. */
export class LineProblem extends Error {}

/** Tokens beyond this are a broken line, not a long prompt. */
const MAX_TOKENS = 2 ** 31 - 1;

/** A count of tokens from text or JSON, at least `minimum`. */
export function tokensField(name: string, value: unknown, minimum: 0 | 1): number {
  const tokens = typeof value === 'string' && value.trim() !== '' ? Number(value) : value;
  if (value === undefined || value === '') throw new LineProblem(`${name} is missing`);
  if (typeof tokens !== 'number' || !Number.isInteger(tokens) || tokens < minimum || tokens > MAX_TOKENS) {
    throw new LineProblem(`${name} must be a whole number of tokens, ${minimum} or more, got ${quoted(value)}`);
  }
  return tokens;
}

const TIMESTAMP =
  /^(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:Z|([+-])(\d\d):?(\d\d))?$/;

/**
 * Milliseconds since 1970 of `2023-11-16 18:17:03.9799600`. Up to nine fractional digits count (Date.parse reads three);
 * without an offset the time is UTC.
 */
export function timestampField(name: string, value: unknown): number {
  if (value === undefined || value === '') throw new LineProblem(`${name} is missing`);
  const match = typeof value === 'string' ? TIMESTAMP.exec(value) : null;
  if (match === null) throw new LineProblem(`${name} must look like 2023-11-16 18:17:03.9799600, got ${quoted(value)}`);
  const [year, month, day, hour, minute, second] = match.slice(1, 7).map(Number) as [
    number, number, number, number, number, number,
  ];
  const wholeMs = Date.UTC(year, month - 1, day, hour, minute, second);
  const date = new Date(wholeMs);
  const isReal = date.getUTCMonth() === month - 1 && date.getUTCDate() === day && date.getUTCHours() === hour
    && date.getUTCMinutes() === minute && date.getUTCSeconds() === second;
  if (!isReal) throw new LineProblem(`${name} is no date of the calendar: ${quoted(value)}`);
  const offsetMinutes = match[8] === undefined ? 0 : Number(`${match[8]}1`) * (Number(match[9]) * 60 + Number(match[10]));
  return wholeMs + Number(`0.${match[7] ?? '0'}`) * 1000 - offsetMinutes * 60_000;
}

/** A value as an error message shows it: short, on one line. */
export function quoted(value: unknown): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value));
  return `'${printable(text.length > 40 ? `${text.slice(0, 40)}…` : text)}'`;
}
