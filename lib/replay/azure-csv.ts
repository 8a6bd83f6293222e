// The Azure LLM inference trace: a CSV of TIMESTAMP, ContextTokens, GeneratedTokens (2023 and 2024 releases), one
// request a line. Columns are found by their names, in any order and case; further columns are ignored. Yields
// requests, or what is wrong with a line, and decides nothing about it.

import { csvFields, linesOf } from './trace-lines.js';
import { LineProblem, timestampField, tokensField, type ParsedLine } from './trace-request.js';

const MAX_LINE_CHARACTERS = 64 * 1024;

/** Column names as compared: letters and digits only, lower case. */
const COLUMNS = { timestamp: 'TIMESTAMP', contexttokens: 'ContextTokens', generatedtokens: 'GeneratedTokens' } as const;
type Column = keyof typeof COLUMNS;

/** Reads the file from its header on. */
export async function* readAzureCsv(chunks: AsyncIterable<Buffer>): AsyncGenerator<ParsedLine, void, undefined> {
  let places: Record<Column, number> | undefined;
  let startMs: number | undefined;
  let line = 0;
  for await (const text of linesOf(chunks, MAX_LINE_CHARACTERS)) {
    line += 1;
    const fields =
      text.length > MAX_LINE_CHARACTERS ? `it is longer than ${MAX_LINE_CHARACTERS} characters` : csvFields(text);
    if (typeof fields === 'string') {
      yield { line, problem: fields, isFatal: true };
      return;
    }
    if (text.trim() === '') continue;
    try {
      if (places === undefined) {
        places = findColumns(fields);
        continue;
      }
      const atMs = timestampField(COLUMNS.timestamp, fields[places.timestamp]);
      const promptTokens = tokensField(COLUMNS.contexttokens, fields[places.contexttokens], 1);
      const outputTokens = tokensField(COLUMNS.generatedtokens, fields[places.generatedtokens], 0);
      startMs ??= atMs;
      yield { line, request: { line, arrivalMs: toMicroseconds(atMs - startMs), promptTokens, outputTokens } };
    } catch (error) {
      if (!(error instanceof LineProblem)) throw error;
      yield { line, problem: error.message, isFatal: places === undefined };
    }
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

/** Milliseconds with three decimals: what is left of seven digits after a subtraction of two large numbers. */
function toMicroseconds(ms: number): number {
  return Math.round(ms * 1000) / 1000;
}
