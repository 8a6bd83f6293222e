// Reads the body of a request as JSON: never more than the bytes that are allowed, whatever the client says it sends. How long a client
// may take is Node's to watch (`requestTimeout`).

import type { IncomingMessage } from 'node:http';

import { createError, isKvError } from '../base/errors.js';
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
    body = parseBounded(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (cause) {
    if (isKvError(cause)) throw cause;
    throw createError('KV_REQUEST_INVALID', { reason: 'malformed', problem: 'its body is not JSON in UTF-8', hint: 'Send a JSON object.' }, { cause });
  }
  if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body as Readonly<Record<string, unknown>>;
  throw createError('KV_REQUEST_INVALID', { reason: 'malformed', problem: 'its body is not a JSON object', hint: 'Send a JSON object.' });
}

/** Objects and arrays within each other: what reads them calls itself for each. */
const deepest = 64;

/** Throws KV_REQUEST_INVALID where it is too deep, and SyntaxError. */
export function parseBounded(text: string): unknown {
  let [depth, most, isString] = [0, 0, false];
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (character === '"') isString = !isString;
    else if (isString) at += character === '\\' ? 1 : 0;
    else if (character === '[' || character === '{') most = Math.max(most, depth += 1);
    else if (character === ']' || character === '}') depth -= 1;
  }
  if (most <= deepest) return JSON.parse(text);
  throw createError('KV_REQUEST_INVALID', {
    reason: 'malformed', problem: `its JSON has ${formatNumber(most)} objects and arrays within each other`,
    hint: `Send at most ${deepest}.`,
  });
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
