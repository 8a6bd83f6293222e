// TraceSource: the bytes of a trace, from a file, from stdin or from any stream, gunzipped when their first bytes
// are those of gzip. It streams: only a few chunks are in memory. Knows no trace format.

import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { PassThrough, Readable, pipeline } from 'node:stream';
import { createGunzip } from 'node:zlib';

const GZIP_MAGIC = [0x1f, 0x8b];

export class TraceSource {
  /** The name to print: the path, `stdin` or `stream`. */
  readonly name: string;
  readonly #source: string | Readable;
  #stream: Readable | undefined;
  #totalBytes: number | undefined;
  #readBytes = 0;

  /** @param source A path, `-` for stdin, or a stream of bytes, which this then owns and destroys. */
  constructor(source: string | Readable) {
    this.name = typeof source !== 'string' ? 'stream' : source === '-' ? 'stdin' : source;
    this.#source = source;
  }

  /** How much of the file has been read, 0 to 1; undefined where its size cannot be known. */
  get readFraction(): number | undefined {
    return this.#totalBytes ? Math.min(1, this.#readBytes / this.#totalBytes) : undefined;
  }

  /** The plain bytes, once. Leaving the loop early destroys the stream below. */
  async *chunks(): AsyncGenerator<Buffer, void, undefined> {
    this.#stream = await this.#open();
    const raw = this.#counted(this.#stream);
    const start = await firstBytes(raw, GZIP_MAGIC.length);
    const whole = startWith(start, raw);
    yield* GZIP_MAGIC.every((byte, at) => start[at] === byte) ? gunzipped(whole) : whole;
  }

  /** Destroys the stream below, also while a read waits for its next bytes, which then fails. Idempotent. */
  close(): void {
    this.#stream?.destroy();
  }

  async #open(): Promise<Readable> {
    if (typeof this.#source !== 'string') return this.#source;
    if (this.#source === '-') return process.stdin;
    const found = await stat(this.#source);
    if (found.isFile()) this.#totalBytes = found.size;
    return createReadStream(this.#source, { highWaterMark: 256 * 1024 });
  }

  async *#counted(stream: Readable): AsyncGenerator<Buffer, void, undefined> {
    for await (const chunk of stream) {
      const bytes = typeof chunk === 'string' ? Buffer.from(chunk) : (chunk as Buffer);
      this.#readBytes += bytes.length;
      yield bytes;
    }
  }
}

async function firstBytes(stream: AsyncIterator<Buffer>, bytes: number): Promise<Buffer> {
  let start = Buffer.alloc(0);
  while (start.length < bytes) {
    const { done, value } = await stream.next();
    if (done) break;
    start = Buffer.concat([start, value]);
  }
  return start;
}

/** `head`, then `rest`; leaving early ends `rest` too. */
export async function* startWith(
  head: Buffer, rest: AsyncGenerator<Buffer, void, undefined>,
): AsyncGenerator<Buffer, void, undefined> {
  try {
    if (head.length > 0) yield head;
    yield* rest;
  } finally {
    await rest.return();
  }
}

async function* gunzipped(compressed: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void, undefined> {
  const output = new PassThrough();
  // pipeline destroys `output` with the error, which the loop below then throws
  pipeline(Readable.from(compressed), createGunzip(), output, () => undefined);
  for await (const chunk of output) yield chunk as Buffer;
}
