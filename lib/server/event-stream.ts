// Writes server-sent events: an event for each object as JSON, then `[DONE]`. It reads its source no faster than the client reads. An
// error after the first event is an event of its own; before it nothing is written, and the error is thrown.

import type { ServerResponse } from 'node:http';

import { httpErrorOf } from './http-error.js';

/** Throws what `events` throws before its first object. Never rejects after that. */
export async function writeEvents(
  response: ServerResponse, headers: Readonly<Record<string, string>>, events: AsyncGenerator<object, void, undefined>, onError: (error: unknown) => void,
): Promise<void> {
  const first = await events.next();
  response.writeHead(200, { ...headers, 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache', 'x-accel-buffering': 'no' });
  try {
    for (let next = first; next.done !== true; next = await events.next()) {
      if (!response.write(eventOf(JSON.stringify(next.value)))) await drained(response);
      if (response.destroyed) return;
    }
    response.end(eventOf('[DONE]'));
  } catch (error) {
    onError(error);
    response.end(eventOf(JSON.stringify(httpErrorOf(error).body)));
  } finally {
    void events.return(undefined);
  }
}

function eventOf(data: string): string {
  return `data: ${data}\n\n`;
}

/** Resolves when the client has read what was written, or has left. */
function drained(response: ServerResponse): Promise<void> {
  if (response.destroyed || response.socket?.destroyed === true) return Promise.resolve();
  return new Promise((resolve) => {
    const { socket } = response;
    const done = (): void => {
      response.off('drain', done).off('close', done);
      socket?.off('close', done);
      resolve();
    };
    response.on('drain', done).on('close', done);
    socket?.on('close', done);
  });
}
