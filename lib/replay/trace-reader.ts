// TraceReader: the requests of a trace file, one by one, in the order of the file. It finds the format in the first
// line, names a broken line in its error (or skips and counts it), and streams: a trace may be larger than memory. A
// reader is read once.

import type { Readable } from 'node:stream';

import { createError, isKvError } from '../base/errors.js';
import { readAzureCsv } from './azure-csv.js';
import { readMooncakeJsonl } from './mooncake-jsonl.js';
import type { ParsedLine, TraceFormat, TraceRequest } from './trace-request.js';
import { TraceSource, startWith } from './trace-source.js';

export interface TraceReaderOptions {
  /** A path, `-` for stdin, or a stream of bytes; gzip is recognised by its first bytes. */
  readonly source: string | Readable;
  /** `auto` (the default) looks at the first line: a CSV header is `azure`, a JSON object is `mooncake`. */
  readonly format?: TraceFormat | 'auto';
  /** Whether a broken line is skipped and counted; otherwise it is an error, KV_TRACE_INVALID. Default false. */
  readonly skipInvalid?: boolean;
}

type FormatReader = (chunks: AsyncIterable<Buffer>) => AsyncGenerator<ParsedLine, void, undefined>;

const readers: Readonly<Record<TraceFormat, FormatReader>> = {
  azure: readAzureCsv,
  mooncake: readMooncakeJsonl,
};

/** Bytes of the file in which its first line must end. */
const HEAD_BYTES = 64 * 1024;

export class TraceReader implements AsyncIterable<TraceRequest> {
  readonly #source: TraceSource;
  readonly #skipInvalid: boolean;
  #format: TraceFormat | undefined;
  #skippedLines = 0;

  constructor({ source, format = 'auto', skipInvalid = false }: TraceReaderOptions) {
    this.#source = new TraceSource(source);
    this.#format = format === 'auto' ? undefined : format;
    this.#skipInvalid = skipInvalid;
  }

  /** The path, `stdin` or `stream`. */
  get name(): string {
    return this.#source.name;
  }

  /** Known from the first request on, or from the start when it was given. */
  get format(): TraceFormat | undefined {
    return this.#format;
  }

  /** Broken lines skipped until now. */
  get skippedLines(): number {
    return this.#skippedLines;
  }

  /** How much of the file has been read, 0 to 1; undefined for a stream. */
  get readFraction(): number | undefined {
    return this.#source.readFraction;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TraceRequest, void, undefined> {
    try {
      const chunks = this.#source.chunks();
      const head = await headOf(chunks);
      this.#format ??= this.#detect(head.toString('utf8'));
      for await (const parsed of readers[this.#format](startWith(head, chunks))) {
        if ('request' in parsed) yield parsed.request;
        else if (this.#skipInvalid && !parsed.isFatal) this.#skippedLines += 1;
        else throw this.#invalid(parsed);
      }
    } catch (error) {
      throw isKvError(error) || !(error instanceof Error) ? error : this.#unreadable(error);
    } finally {
      this.close();
    }
  }

  /** Stops reading and closes the file or stream; reading on then fails. Idempotent; not needed after a whole loop. */
  close(): void {
    this.#source.close();
  }

  #detect(head: string): TraceFormat {
    const first = head.replace(/^\ufeff/, '').trimStart().split(/\r?\n/, 1)[0] ?? '';
    if (first.startsWith('{')) return 'mooncake';
    if (/timestamp/i.test(first) && first.includes(',')) return 'azure';
    throw createError('KV_CONFIG_INVALID', {
      source: this.name,
      problem: first === '' ? 'it is empty' : 'its first line is neither the header of an Azure CSV nor a JSON object',
      hint: 'Give an Azure or Mooncake trace, or name the format with `--format`.',
    });
  }

  #invalid({ line, problem, isFatal }: Extract<ParsedLine, { readonly problem: string }>): Error {
    return createError('KV_TRACE_INVALID', { source: this.name, line, problem, isSkippable: !isFatal });
  }

  #unreadable(cause: Error): Error {
    const { code = '' } = cause as NodeJS.ErrnoException;
    const isGzip = code.startsWith('Z_');
    const problem = isGzip
      ? `its gzip data is damaged or ends early (${code})`
      : code === 'ENOENT' ? 'it is not there' : `it cannot be read (${code || cause.message})`;
    const hint = isGzip ? 'Fetch or compress it again.' : 'Check the path, and whether you may read it.';
    return createError('KV_CONFIG_INVALID', { source: this.name, problem, hint }, { cause });
  }
}

/** The first line (or more) of the file. */
async function headOf(chunks: AsyncIterator<Buffer>): Promise<Buffer> {
  let head = Buffer.alloc(0);
  while (head.length < HEAD_BYTES && !/\S[^\n]*\n/.test(head.toString('latin1'))) {
    const { done, value } = await chunks.next();
    if (done) break;
    head = Buffer.concat([head, value]);
  }
  return head;
}
