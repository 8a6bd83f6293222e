// Makes the error of a code: picks its class, renders its message from the catalogue, keeps details and cause. The only
// place where errors of this package are constructed. Throws nothing itself.

import { catalogue, type CatalogueEntry, type ErrorClass } from './catalogue.js';
import {
  KvAbortError, KvCapacityError, KvDriverError, KvError, KvErrorFields, KvStateError,
  type CodedError,
} from './classes.js';
import type { ErrorCode, ErrorDetails } from './details.js';

const constructors = {
  KvError, KvStateError, KvCapacityError, KvDriverError, KvAbortError,
} as const;

/** The error of `code`, ready to be thrown; its stack starts at the caller. `details` is kept, not copied. */
export function createError<C extends ErrorCode>(
  code: C, details: ErrorDetails[C], options: { readonly cause?: unknown } = {},
): CodedError<C> {
  const entry: CatalogueEntry<C> = catalogue[code];
  const errorClass = typeof entry.class === 'function' ? entry.class(details) : entry.class;
  const fields = new KvErrorFields(code, entry.recovery, details, options.cause);
  const error = withoutStack(errorClass, entry.template(details), fields);
  Error.captureStackTrace(error, createError);
  return error;
}

/** Constructed without the stack that every Error takes, which is most of its cost: `createError` takes the one that counts. */
function withoutStack<C extends ErrorCode>(errorClass: ErrorClass, message: string, fields: KvErrorFields<C>): CodedError<C> {
  const { stackTraceLimit } = Error;
  Reflect.set(Error, 'stackTraceLimit', 0); // where it is frozen, two stacks are taken
  try {
    return construct(errorClass, message, fields);
  } finally {
    Reflect.set(Error, 'stackTraceLimit', stackTraceLimit);
  }
}

/**
 * Whether `error` is one of this package's, and of that code when one is given; `details` is then typed by the code.
 */
export function isKvError<C extends ErrorCode = ErrorCode>(error: unknown, code?: C): error is CodedError<C> {
  try {
    if (!(error instanceof Error) || !('code' in error) || !('recovery' in error)) return false;
    return code === undefined ? typeof error.code === 'string' && Object.hasOwn(catalogue, error.code) : error.code === code;
  } catch { // a proxy that was revoked, or that answers with errors
    return false;
  }
}

function construct<C extends ErrorCode>(
  errorClass: ErrorClass, message: string, fields: KvErrorFields<C>,
): CodedError<C> {
  if (errorClass !== 'TypeError' && errorClass !== 'RangeError') return new constructors[errorClass](message, fields);
  const { code, recovery, details, cause } = fields;
  const error = new (errorClass === 'TypeError' ? TypeError : RangeError)(
    message, cause === undefined ? undefined : { cause },
  );
  return Object.assign(error, { code, recovery, details });
}
