// TraceRequest: one request of a serving trace, as the format readers and the generated workload make it; it is not
// changed after that. A trace has lengths and times, never text. Here are also the checks that the readers share: a
// wrong field is thrown as a LineProblem, whose text ends the sentence "FILE, line 7: …"; the trace reader adds the
// file and the line.

import { printable } from '../base/format.js';

/** Trace files this package reads. `azure`: the Azure LLM inference CSV. `mooncake`: the Mooncake JSONL. */
export type TraceFormat = 'azure' | 'mooncake';

/** Tokens that one hash id of a Mooncake trace stands for; the last block of a prompt may be shorter. */
export const HASH_BLOCK_TOKENS = 512;

export interface TraceRequest {
  /** Where it was read: the line of the file, from 1; or the number of a generated request, from 1. */
  readonly line: number;
  /** When it arrives, in ms after the first request of the trace. */
  readonly arrivalMs: number;
  /** Tokens of the prompt, at least 1. */
  readonly promptTokens: number;
  /** Tokens the model answered with; 0 is a request that is over after its prefill. */
  readonly outputTokens: number;
  /**
   * Content of the prompt: equal ids at equal places are equal blocks of HASH_BLOCK_TOKENS tokens, first block first.
   */
  readonly hashIds?: Int32Array;
}

/** What a format reader makes of one line of a trace. The trace reader decides what a problem means. */
export type ParsedLine =
  | { readonly line: number; readonly request: TraceRequest }
  | {
    readonly line: number;
    /** Ends the sentence "FILE, line 7: …", without its full stop. */
    readonly problem: string;
    /** The lines after it cannot be read either, so it cannot be skipped. */
    readonly isFatal: boolean;
  };

/** Tokens that a request holds at its end: the last token it generates is never fed back, so it has no K and V. */
export function peakTokensOf({ promptTokens, outputTokens }: TraceRequest): number {
  return promptTokens + Math.max(0, outputTokens - 1);
}

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
 * Milliseconds since 1970 of `2023-11-16 18:17:03.9799600`. Up to nine fractional digits count (Date.parse reads
 * three); without an offset the time is UTC.
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
  const offsetMinutes =
    match[8] === undefined ? 0 : Number(`${match[8]}1`) * (Number(match[9]) * 60 + Number(match[10]));
  return wholeMs + Number(`0.${match[7] ?? '0'}`) * 1000 - offsetMinutes * 60_000;
}

/** A value as an error message shows it: short, on one line. */
export function quoted(value: unknown): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value));
  return `'${printable(text.length > 40 ? `${text.slice(0, 40)}…` : text)}'`;
}
