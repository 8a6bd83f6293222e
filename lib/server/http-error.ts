// HttpError: what a client is told of an error: a status, headers and the body that OpenAI's clients read. Errors of this package keep
// their code and message; of others only that there was one is told.

import { randomUUID } from 'node:crypto';
import { STATUS_CODES } from 'node:http';

import { isKvError, type ErrorCode, type ErrorDetails } from '../base/errors.js';

/** The body of an error. */
export interface ErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    /** As OpenAI names it where it has a name for it, else the code of this package. */
    readonly code: string;
  };
}

export interface HttpError {
  readonly status: number;
  readonly body: ErrorBody;
}

const reasons: Readonly<Record<ErrorDetails['KV_REQUEST_INVALID']['reason'], number>> = {
  malformed: 400, 'too-large': 413, 'headers-too-large': 431, 'too-slow': 408, 'media-type': 415, 'not-found': 404,
  method: 405, expectation: 417,
  unauthorized: 401, forbidden: 403, 'too-many': 429,
};

const statuses: Readonly<Partial<Record<ErrorCode, number>>> = {
  KV_UNKNOWN_OPTION: 400, KV_INVALID_OPTION: 400, KV_NOT_SUPPORTED: 400, KV_LENGTH_OUT_OF_RANGE: 400, KV_OUT_OF_PAGES: 400, KV_MODEL_INVALID: 400,
  KV_QUEUE_FULL: 429, KV_DEADLINE_EXCEEDED: 504, KV_ABORTED: 499, KV_CLOSED: 503, KV_ENGINE_STALLED: 503,
};

/** OpenAI's names, of codes and of reasons of KV_REQUEST_INVALID. */
const names: Readonly<Record<string, string>> = {
  unauthorized: 'invalid_api_key', 'too-many': 'rate_limit_exceeded',
  KV_LENGTH_OUT_OF_RANGE: 'context_length_exceeded', KV_OUT_OF_PAGES: 'context_length_exceeded', KV_UNKNOWN_OPTION: 'unknown_parameter',
  KV_QUEUE_FULL: 'rate_limit_exceeded',
};

export function httpErrorOf(error: unknown): HttpError {
  if (!isKvError(error) || isOfServer(error)) return bodyOf(500, 'The server failed; its log has the error.', 'server_error', null, 'internal_error');
  const { code, message } = error;
  const status = isKvError(error, 'KV_REQUEST_INVALID') ? reasons[error.details.reason] : statuses[code] ?? 500;
  const { option } = error.details as { readonly option?: unknown };
  const name = names[isKvError(error, 'KV_REQUEST_INVALID') ? error.details.reason : code] ?? code;
  return bodyOf(status, message, typeOf(status), typeof option === 'string' ? option : null, name);
}

/** The id that an answer carries: the client's own where it sent one that a header can carry. */
export function requestIdOf(given: string | string[] | undefined): string {
  return typeof given === 'string' && /^[\x21-\x7e]{1,128}$/.test(given) ? given : `req-${randomUUID()}`;
}

/** A whole answer to what is no request of HTTP, or one that no route sees. */
export function bareAnswer(error: unknown): string {
  const { status, body } = httpErrorOf(error);
  const text = JSON.stringify(body);
  return `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? 'Error'}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(text)}\r\n` +
    `x-request-id: ${requestIdOf(undefined)}\r\nconnection: close\r\n\r\n${text}`;
}

/** Whose options the server's operator has given: functions that return nonsense. What a client sends is read before. */
const owners: readonly string[] = ['ModelServer', 'SchedulerOptions', 'GenerationRequest'];

/** Whether the server's own options are wrong, which no client can mend. */
function isOfServer(error: Error): boolean {
  return isKvError(error, 'KV_INVALID_OPTION') && owners.includes(error.details.owner);
}

function bodyOf(status: number, message: string, type: string, param: string | null, code: string): HttpError {
  return { status, body: { error: { message, type, param, code } } };
}

function typeOf(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 429) return 'rate_limit_error';
  return status >= 500 ? 'server_error' : 'invalid_request_error';
}
