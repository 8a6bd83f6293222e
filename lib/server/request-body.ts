// Reads the body of a request as JSON: never more than the bytes that are allowed, whatever the client says it sends. How long a client
// may take is Node's to watch (`requestTimeout`).

import type { IncomingMessage } from 'node:http';

import { createError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';

/** Rejects with KV_REQUEST_INVALID; with KV_ABORTED where the client has left. */
export async function readJsonBody(incoming: IncomingMessage, maxBytes: number): Promise<Readonly<Record<string, unknown>>> {
  const type = incoming.headers['content-type'] ?? '';
  if (!/^application\/json\s*(?:;|$)/i.test(type)) {
    throw createError('KV_REQUEST_INVALID', {
      reason: 'media-type', problem: `its content type is ${type === '' ? 'missing' : JSON.stringify(type.slice(0, 100))}`, hint: 'Send application/json.',
    });
  }
  if (incoming.headers['content-encoding'] !== undefined) {
    throw createError('KV_REQUEST_INVALID', { reason: 'media-type', problem: 'its body is compressed', hint: 'Send it as it is.' });
  }
  const bytes = await readBytes(incoming, maxBytes);
  let body: unknown;
  try {
    body = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (cause) {
    throw createError('KV_REQUEST_INVALID', { reason: 'malformed', problem: 'its body is not JSON in UTF-8', hint: 'Send a JSON object.' }, { cause });
  }
  if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body as Readonly<Record<string, unknown>>;
  throw createError('KV_REQUEST_INVALID', { reason: 'malformed', problem: 'its body is not a JSON object', hint: 'Send a JSON object.' });
}

function readBytes(incoming: IncomingMessage, maxBytes: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let length = 0;
    const leave = (): void => {
      incoming.off('data', take).off('end', end).off('close', close).off('error', close);
    };
    const tooLarge = (): void => {
      leave();
      reject(createError('KV_REQUEST_INVALID', {
        reason: 'too-large', problem: `its body has more than ${formatNumber(maxBytes)} bytes`,
        hint: 'Send a shorter prompt, or start the server with a larger `--max-body-bytes`.',
      }));
    };
    const take = (chunk: Buffer): void => {
      length += chunk.length;
      if (length > maxBytes) tooLarge();
      else chunks.push(chunk);
    };
    const end = (): void => {
      leave();
      resolve(Buffer.concat(chunks, length));
    };
    const close = (): void => {
      leave();
      reject(createError('KV_ABORTED', { operation: 'reading a request' }));
    };
    if (Number(incoming.headers['content-length'] ?? 0) > maxBytes) tooLarge();
    else incoming.on('data', take).on('end', end).on('close', close).on('error', close);
  });
}
