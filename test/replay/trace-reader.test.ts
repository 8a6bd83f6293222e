import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { Readable } from 'node:stream';
import { gzipSync } from 'node:zlib';

import test from 'ava';

import { isKvError } from '#internal/base/errors.js';
import { TraceReader, type TraceReaderOptions } from '#internal/replay/trace-reader.js';
import type { TraceRequest } from '#internal/replay/trace-request.js';
import { testWithTrace, traceFile } from './traces.js';

const AZURE = `TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:04.0319607,110,27
`;

const MOONCAKE = `{"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 2]}
{"timestamp": 40, "input_length": 513, "output_length": 4, "hash_ids": [0, 3]}
{"timestamp": 40, "input_length": 12, "output_length": 1}
`;

type Source = Pick<TraceReaderOptions, 'format' | 'skipInvalid'>;

/** Reads text, in pieces of `pieceBytes`, so that every border falls inside a line. */
async function read(text: string | Buffer, options: Source = {}, pieceBytes = 7): Promise<{ requests: TraceRequest[]; reader: TraceReader }> {
  const bytes = Buffer.from(text);
  const pieces = Array.from({ length: Math.ceil(bytes.length / pieceBytes) }, (_, at) => bytes.subarray(at * pieceBytes, (at + 1) * pieceBytes));
  const reader = new TraceReader({ source: Readable.from(pieces), ...options });
  const requests: TraceRequest[] = [];
  for await (const request of reader) requests.push(request);
  return { requests, reader };
}

async function failure(text: string | Buffer, options: Source = {}): Promise<{ code: string; message: string; details: unknown }> {
  try {
    await read(text, options);
  } catch (error) {
    if (isKvError(error)) return { code: error.code, message: error.message, details: error.details };
    throw error;
  }
  throw new Error('nothing was thrown');
}

const lengths = (requests: readonly TraceRequest[]): number[][] =>
  requests.map(({ line, promptTokens, outputTokens }) => [line, promptTokens, outputTokens]);

test('an Azure CSV: line, lengths, and arrival to the microsecond', async (t) => {
  const { requests, reader } = await read(AZURE);
  t.is(reader.format, 'azure');
  t.deepEqual(lengths(requests), [[2, 4808, 10], [3, 3180, 8], [4, 110, 27]]);
  t.deepEqual(requests.map(({ arrivalMs }) => arrivalMs), [0, 52, 60_052.001]);
});

test('a Mooncake JSONL: line, lengths, arrival and hash ids', async (t) => {
  const { requests, reader } = await read(MOONCAKE);
  t.is(reader.format, 'mooncake');
  t.deepEqual(lengths(requests), [[1, 1100, 6], [2, 513, 4], [3, 12, 1]]);
  t.deepEqual(requests.map(({ arrivalMs }) => arrivalMs), [0, 40, 40]);
  t.deepEqual(requests.map(({ hashIds }) => hashIds && [...hashIds]), [[0, 1, 2], [0, 3], undefined]);
});

test('CRLF, a byte order mark, blank lines, no last newline', async (t) => {
  const wild = (text: string): string => `\ufeff${text.replaceAll('\n', '\r\n').trimEnd()}`;
  t.deepEqual(lengths((await read(wild(AZURE))).requests), [[2, 4808, 10], [3, 3180, 8], [4, 110, 27]]);
  t.deepEqual(lengths((await read(wild(MOONCAKE))).requests), [[1, 1100, 6], [2, 513, 4], [3, 12, 1]]);
  t.deepEqual(lengths((await read(`${AZURE}\n\n`)).requests).length, 3);
  t.deepEqual(lengths((await read(MOONCAKE.replace('\n', '\n\r\n'))).requests), [[1, 1100, 6], [3, 513, 4], [4, 12, 1]]);
});

test('Azure columns are found by name, in any order and case, with further columns between', async (t) => {
  const { requests } = await read(`generated_tokens,Model,Timestamp,contextTokens
7,a,2024-05-10 00:00:00.009930+00:00,300
9,"b, c",2024-05-10 02:00:01+02:00,400
`);
  t.deepEqual(requests, [
    { line: 2, arrivalMs: 0, promptTokens: 300, outputTokens: 7 },
    { line: 3, arrivalMs: 990.07, promptTokens: 400, outputTokens: 9 },
  ]);
});

test('gzip is known by its first bytes, in pieces of any size', async (t) => {
  for (const pieceBytes of [1, 7, 65_536]) {
    t.is((await read(gzipSync(AZURE), {}, pieceBytes)).requests.length, 3);
    t.is((await read(gzipSync(MOONCAKE), {}, pieceBytes)).requests.length, 3);
  }
});

test('a file is read from its path, whatever its name', async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-trace-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const file = path.join(folder, 'trace.txt');
  writeFileSync(file, gzipSync(MOONCAKE));
  const reader = new TraceReader({ source: file });
  const requests = [];
  for await (const request of reader) requests.push(request);
  t.is(requests.length, 3);
  t.is(reader.name, file);
  t.is(reader.readFraction, 1);
});

test('a broken line is an error that names it, in both formats', async (t) => {
  const azure = async (line: string): Promise<string> => (await failure(`${AZURE}${line}\n${AZURE.split('\n')[1]}\n`)).message;
  t.regex(await azure('2023-11-16 18:17:04.03,-5,8'), /line 5: ContextTokens .*'-5'/);
  t.regex(await azure('2023-11-16 18:17:04.03,0,8'), /line 5: ContextTokens/);
  t.regex(await azure('2023-11-16 18:17:04.03,12,1.5'), /line 5: GeneratedTokens/);
  t.regex(await azure('2023-11-16 18:17:04.03,12'), /line 5: GeneratedTokens is missing/);
  t.regex(await azure('2023-11-31 18:17:04.03,12,1'), /line 5: TIMESTAMP .* calendar/);
  t.regex(await azure('yesterday,12,1'), /line 5: TIMESTAMP .*'yesterday'/);
  t.regex(await azure('2023-11-16 18:17:04.03,"12,1'), /line \d+: a quote/);

  const mooncake = async (line: string): Promise<string> => (await failure(`${MOONCAKE}${line}\n${MOONCAKE}`)).message;
  t.regex(await mooncake('{"timestamp": 1, "input_le'), /line 4: .*no JSON/);
  t.regex(await mooncake('[1, 2]'), /line 4: .*object/);
  t.regex(await mooncake('{"input_length": 1, "output_length": 1}'), /line 4: timestamp is missing/);
  t.regex(await mooncake('{"timestamp": "1", "input_length": 1, "output_length": 1}'), /line 4: timestamp must be/);
  t.regex(await mooncake('{"timestamp": 1, "input_length": 1e99, "output_length": 1}'), /line 4: input_length/);
  t.regex(await mooncake('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1.5]}'), /line 4: hash_ids must be/);
  t.regex(await mooncake('{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}'), /line 4: hash_ids .* 2 ids .* 512 /);

  t.like(await failure(`${MOONCAKE}oops`), {
    code: 'KV_TRACE_INVALID', details: { source: 'stream', line: 4, isSkippable: true },
  });
});

test('skipInvalid counts broken lines and goes on', async (t) => {
  const azure = await read(`${AZURE}oops\n2023-11-16 18:18:05,1,1\n,,\n`, { skipInvalid: true });
  t.deepEqual(lengths(azure.requests).at(-1), [6, 1, 1]);
  t.is(azure.reader.skippedLines, 2);
  const mooncake = await read(`oops\n${MOONCAKE}{}\n`, { skipInvalid: true, format: 'mooncake' });
  t.is(mooncake.requests.length, 3);
  t.is(mooncake.reader.skippedLines, 2);
});

test('what makes the rest unreadable is an error also with skipInvalid', async (t) => {
  t.regex((await failure('TIMESTAMP,Tokens\n', { skipInvalid: true })).message, /line 1: .*ContextTokens/);
  t.regex((await failure(`${AZURE}"\n1,2,3\n`, { skipInvalid: true })).message, /a quote/);
});

test('a file that is no trace, is empty, is damaged or is not there', async (t) => {
  t.like(await failure('hello\nworld\n'), { code: 'KV_CONFIG_INVALID', details: { source: 'stream' } });
  t.regex((await failure('')).message, /empty/);
  t.regex((await failure(gzipSync(AZURE).subarray(0, 40))).message, /gzip .*Z_BUF_ERROR/);
  const absent = new TraceReader({ source: path.join(__dirname, 'absent.csv') });
  const error = await t.throwsAsync(async () => { for await (const request of absent) t.fail(String(request.line)); });
  t.regex(error?.message ?? '', /absent\.csv: .* there/);
  t.is((error?.cause as NodeJS.ErrnoException).code, 'ENOENT');
});

test('leaving the loop, and close(), end the stream below', async (t) => {
  const endless = (): Readable => Readable.from((function* () { for (;;) yield MOONCAKE.replaceAll('"timestamp": 40', '"timestamp": 0'); })());
  const left = endless();
  for await (const request of new TraceReader({ source: left })) if (request.line === 1000) break;
  t.true(left.destroyed);

  const silent = new Readable({ read() {} });
  const reader = new TraceReader({ source: silent });
  const waiting = reader[Symbol.asyncIterator]().next();
  setImmediate(() => reader.close());
  await t.throwsAsync(waiting);
  t.true(silent.destroyed);
});

testWithTrace('the Azure trace is read whole', 'azure-code.csv', async (t) => {
  let requests = 0;
  let promptTokens = 0;
  let lastMs = 0;
  for await (const request of new TraceReader({ source: traceFile('azure-code.csv') })) {
    requests += 1;
    promptTokens += request.promptTokens;
    lastMs = request.arrivalMs;
  }
  t.deepEqual([requests, promptTokens, Math.round(lastMs)], [8_819, 18_059_974, 3_435_948]);
});

testWithTrace('the Mooncake trace is read whole', 'mooncake-synthetic.jsonl', async (t) => {
  let requests = 0;
  let promptTokens = 0;
  let blocks = 0;
  for await (const request of new TraceReader({ source: traceFile('mooncake-synthetic.jsonl') })) {
    requests += 1;
    promptTokens += request.promptTokens;
    blocks += request.hashIds?.length ?? 0;
  }
  t.deepEqual([requests, promptTokens], [3_993, 61_194_628]);
  t.true(blocks * 512 >= promptTokens);
});
