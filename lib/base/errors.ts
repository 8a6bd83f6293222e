// What the rest of the package uses of the errors: one catalogue, stable codes, a recovery for each. `createError`
// constructs every error of this package: it picks the class, renders the message from the catalogue, keeps details and
// cause. Throws nothing itself.

import { catalogue } from './catalogue.js';
import {
  KvAbortError, KvCapacityError, KvDriverError, KvError, KvErrorFields, KvStateError, type CodedError,
} from './classes.js';
import type { CatalogueEntry, ErrorClass, ErrorCode, ErrorDetails } from './details.js';

export { catalogue } from './catalogue.js';
export {
  KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError, type CodedError,
} from './classes.js';
export type {
  CatalogueEntry, DriverCall, ErrorClass, ErrorCode, ErrorDetails, Recovery, RemoteRefusal, UnavailableReason,
} from './details.js';
export { codeOfNative, nativeCodes, nativeReasons, reasonOfNative, type NativeErrorCode } from './native-codes.js';

const constructors = {
  KvError, KvStateError, KvCapacityError, KvDriverError, KvAbortError,
} as const;

/**
 * Returns the error of `code`, to be thrown by the caller, where its stack starts. Keeps `details` without copying it.
 */
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

/**
 * Constructed without the stack that every Error takes, which is most of its cost: `createError` takes the one that
 * counts.
 */
function withoutStack<C extends ErrorCode>(
  errorClass: ErrorClass, message: string, fields: KvErrorFields<C>,
): CodedError<C> {
  const { stackTraceLimit } = Error;
  Reflect.set(Error, 'stackTraceLimit', 0); // where it is frozen, two stacks are taken
  try {
    return construct(errorClass, message, fields);
  } finally {
    Reflect.set(Error, 'stackTraceLimit', stackTraceLimit);
  }
}

/**
 * Whether `error` is an error of this package, and has that code when one is given; `details` then has the code's type.
 */
export function isKvError<C extends ErrorCode = ErrorCode>(error: unknown, code?: C): error is CodedError<C> {
  try {
    if (!(error instanceof Error) || !('code' in error) || !('recovery' in error)) return false;
    return code === undefined ? typeof error.code === 'string' && Object.hasOwn(catalogue, error.code)
      : error.code === code;
  } catch { // a proxy that was revoked, or whose traps throw
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
