// The Azure LLM inference trace: a CSV of TIMESTAMP, ContextTokens, GeneratedTokens (2023 and 2024 releases), one request a
// line. Columns are found by their names, in any order and case; further columns are ignored. Yields requests, or what is wrong
// with a line, and decides nothing about it.

import { Readable, pipeline } from 'node:stream';

import { CsvError, parse, type Info } from 'csv-parse';

import { LineProblem, timestampField, tokensField } from './trace-fields.js';
import type { ParsedLine } from './trace-request.js';

const MAX_LINE_BYTES = 64 * 1024;

/** Column names as compared: letters and digits only, lower case. */
const COLUMNS = { timestamp: 'TIMESTAMP', contexttokens: 'ContextTokens', generatedtokens: 'GeneratedTokens' } as const;
type Column = keyof typeof COLUMNS;

interface Row { readonly record: readonly string[]; readonly info: Info }

/** Reads the file from its header on. */
export async function* readAzureCsv(chunks: AsyncIterable<Buffer>): AsyncGenerator<ParsedLine, void, undefined> {
  const parser = parse({
    bom: true, info: true, max_record_size: MAX_LINE_BYTES, relax_column_count: true, skip_empty_lines: true, trim: true,
  });
  pipeline(Readable.from(chunks), parser, () => undefined); // an error of either side ends the loop below with it
  let places: Record<Column, number> | undefined;
  let startMs: number | undefined;
  try {
    for await (const row of parser) {
      const { record, info } = row as Row;
      try {
        if (places === undefined) {
          places = findColumns(record);
          continue;
        }
        const atMs = timestampField(COLUMNS.timestamp, record[places.timestamp]);
        const promptTokens = tokensField(COLUMNS.contexttokens, record[places.contexttokens], 1);
        const outputTokens = tokensField(COLUMNS.generatedtokens, record[places.generatedtokens], 0);
        startMs ??= atMs;
        const arrivalMs = toMicroseconds(atMs - startMs);
        yield { line: info.lines, request: { line: info.lines, arrivalMs, promptTokens, outputTokens } };
      } catch (error) {
        if (!(error instanceof LineProblem)) throw error;
        yield { line: info.lines, problem: error.message, isFatal: places === undefined };
      }
    }
  } catch (error) {
    if (!(error instanceof CsvError)) throw error;
    const { lines } = error as CsvError & { readonly lines?: number };
    yield { line: lines ?? parser.info.lines, problem: csvProblem(error), isFatal: true };
  }
}

function findColumns(header: readonly string[]): Record<Column, number> {
  const names = header.map((name) => name.toLowerCase().replace(/[^a-z0-9]/g, ''));
  const place = (column: Column): number => {
    const found = names.indexOf(column);
    if (found < 0) throw new LineProblem(`the header has no column ${COLUMNS[column]}`);
    return found;
  };
  return {
    timestamp: place('timestamp'), contexttokens: place('contexttokens'), generatedtokens: place('generatedtokens'),
  };
}

function csvProblem(error: CsvError): string {
  switch (error.code) {
    case 'CSV_QUOTE_NOT_CLOSED': return 'a quote is opened and never closed';
    case 'CSV_MAX_RECORD_SIZE': return `the line is longer than ${MAX_LINE_BYTES} bytes, or a quote is never closed`;
    default: return `it is no CSV (${error.code})`;
  }
}

/** Milliseconds with three decimals: what is left of seven digits after a subtraction of two large numbers. */
function toMicroseconds(ms: number): number {
  return Math.round(ms * 1000) / 1000;
}
