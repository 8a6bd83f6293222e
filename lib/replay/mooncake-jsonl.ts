// The Mooncake trace: one JSON object a line, {timestamp (ms), input_length, output_length, hash_ids (one for each
// block of 512 prompt tokens, optional)}; other fields are ignored. Yields requests, or what is wrong with a line, and
// decides nothing about it.

import { formatCount } from '../base/format.js';
import { linesOf } from './trace-lines.js';
import {
  HASH_BLOCK_TOKENS, LineProblem, quoted, tokensField, type ParsedLine, type TraceRequest,
} from './trace-request.js';

const MAX_LINE_CHARACTERS = 16 * 2 ** 20;

/** Reads the file from its first line on. */
export async function* readMooncakeJsonl(chunks: AsyncIterable<Buffer>): AsyncGenerator<ParsedLine, void, undefined> {
  let line = 0;
  let startMs: number | undefined;
  for await (const text of linesOf(chunks, MAX_LINE_CHARACTERS)) {
    line += 1;
    if (text.length > MAX_LINE_CHARACTERS) {
      yield { line, problem: `it is longer than ${MAX_LINE_CHARACTERS} characters`, isFatal: true };
      return;
    }
    if (text.trim() === '') continue;
    try {
      const { timestampMs, ...request } = parseLine(text, line);
      startMs ??= timestampMs;
      yield { line, request: { ...request, arrivalMs: timestampMs - startMs } };
    } catch (error) {
      if (!(error instanceof LineProblem)) throw error;
      yield { line, problem: error.message, isFatal: false };
    }
  }
}

function parseLine(text: string, line: number): Omit<TraceRequest, 'arrivalMs'> & { readonly timestampMs: number } {
  const fields = parseObject(text);
  const { timestamp, hash_ids: ids } = fields;
  if (timestamp === undefined) throw new LineProblem('timestamp is missing');
  if (typeof timestamp !== 'number' || !Number.isFinite(timestamp)) {
    throw new LineProblem(`timestamp must be a number of milliseconds, got ${quoted(timestamp)}`);
  }
  const promptTokens = tokensField('input_length', fields['input_length'], 1);
  const outputTokens = tokensField('output_length', fields['output_length'], 0);
  const request = { line, timestampMs: timestamp, promptTokens, outputTokens };
  return ids === undefined ? request : { ...request, hashIds: hashIdsField(ids, promptTokens) };
}

function parseObject(text: string): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new LineProblem(`it is no JSON: ${quoted(text)}`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new LineProblem(`it must be a JSON object, got ${quoted(text)}`);
  }
  return value as Record<string, unknown>;
}

function hashIdsField(value: unknown, promptTokens: number): Int32Array {
  const isId = (id: unknown): boolean => typeof id === 'number' && Number.isInteger(id) && id >= 0 && id < 2 ** 31;
  if (!Array.isArray(value) || !value.every(isId)) {
    throw new LineProblem('hash_ids must be a list of whole numbers below 2^31');
  }
  const blocks = Math.ceil(promptTokens / HASH_BLOCK_TOKENS);
  if (value.length > blocks) {
    const wanted = `${formatCount('block', blocks)} of ${HASH_BLOCK_TOKENS} tokens`;
    throw new LineProblem(`hash_ids has ${value.length} ids for ${wanted}`);
  }
  return Int32Array.from(value as number[]);
}
