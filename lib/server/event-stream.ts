// Writes server-sent events: an event for each object as JSON, then `[DONE]`. It reads its source no faster than the
// client reads. The headers go at once, and a comment whenever nothing has come for a while, so that no proxy takes a
// long prompt for a dead server. An error is an event of its own, the last.

import type { ServerResponse } from 'node:http';

import { httpErrorOf } from './http-error.js';

export interface EventStreamOptions {
  readonly headers: Readonly<Record<string, string>>;
  /** Ms without an event after which there is a comment. */
  readonly commentMs: number;
  readonly onError: (error: unknown) => void;
  /** Aborted when the client has left, also where the answers before this one on its connection were not read. */
  readonly signal: AbortSignal;
}

/** Never rejects. */
export async function writeEvents(
  response: ServerResponse, events: AsyncGenerator<object, void, undefined>,
  { headers, commentMs, onError, signal }: EventStreamOptions,
): Promise<void> {
  response.writeHead(200, { ...headers, 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache', 'x-accel-buffering': 'no' });
  response.flushHeaders();
  const timer = setTimeout(() => {
    if (!response.destroyed && response.writableLength === 0) response.write(':\n\n'); // else the client does not read
    timer.refresh();
  }, commentMs);
  try {
    for await (const event of events) {
      if (!response.write(eventOf(JSON.stringify(event)))) await drained(response, signal);
      if (response.destroyed || signal.aborted) return;
      timer.refresh();
    }
    response.end(eventOf('[DONE]'));
  } catch (error) {
    onError(error);
    response.end(eventOf(JSON.stringify(httpErrorOf(error).body)));
  } finally {
    clearTimeout(timer);
  }
}

function eventOf(data: string): string {
  return `data: ${data}\n\n`;
}

/** Resolves when the client has read what was written, or has left. A response behind others has no socket yet. */
function drained(response: ServerResponse, signal: AbortSignal): Promise<void> {
  if (response.destroyed || signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const done = (): void => {
      response.off('drain', done);
      signal.removeEventListener('abort', done);
      resolve();
    };
    response.on('drain', done);
    signal.addEventListener('abort', done);
  });
}
