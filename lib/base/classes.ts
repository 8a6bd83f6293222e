// The error classes, one for each way to react; `code` says what happened. Programming mistakes are TypeError and
// RangeError with the same four fields. Only `createError` makes instances.

import { catalogue } from './catalogue.js';
import type { DriverCall, ErrorCode, ErrorDetails, Recovery } from './details.js';

export type { Recovery } from './details.js';

/** The fields of every error of this package, whatever its class. */
export interface CodedError<C extends ErrorCode = ErrorCode> extends Error {
  /** What happened; stable within a major version. docs/errors.md lists all. */
  readonly code: C;
  /** What helps; see `KvError.recovery`. */
  readonly recovery: Recovery;
  /** The numbers and names of the message. */
  readonly details: ErrorDetails[C];
}

/**
 * The fields of an error. Only `createError` can make an instance: an object with the same members is refused.
 * @internal
 */
export class KvErrorFields<C extends ErrorCode = ErrorCode> {
  readonly code: C;
  readonly recovery: Recovery;
  readonly details: ErrorDetails[C];
  /** The error of the layer below, or an abort signal's reason. */
  readonly cause: unknown;
  readonly #isMade = true;

  constructor(code: C, recovery: Recovery, details: ErrorDetails[C], cause: unknown) {
    this.code = code;
    this.recovery = recovery;
    this.details = details;
    this.cause = cause;
  }

  /** The same fields; throws KV_INVALID_OPTION for any others. */
  static check<C extends ErrorCode>(fields: KvErrorFields<C>): KvErrorFields<C> {
    if (typeof fields === 'object' && (fields as object | null) !== null && #isMade in fields) return fields;
    const details = {
      reason: 'type', owner: 'KvError', option: 'new KvError', expected: 'left to this package', received: 'a call',
    } as const;
    const { template, recovery } = catalogue.KV_INVALID_OPTION;
    throw Object.assign(new TypeError(template(details)), { code: 'KV_INVALID_OPTION', recovery, details } as const);
  }
}

/** Base class of all errors but mistakes in a call, which are TypeError and RangeError. */
export class KvError<C extends ErrorCode = ErrorCode> extends Error implements CodedError<C> {
  /** What happened; stable within a major version. docs/errors.md lists all. */
  readonly code: C;
  /** What helps: `fix` the call, `free` something and retry, `retry` later, `restart`, `report` a bug, or `none`. */
  readonly recovery: Recovery;
  /** The numbers and names of the message. */
  readonly details: ErrorDetails[C];

  /** @internal */
  constructor(message: string, fields: KvErrorFields<C>) {
    const { cause } = KvErrorFields.check(fields);
    super(message, cause === undefined ? undefined : { cause });
    this.code = fields.code;
    this.recovery = fields.recovery;
    this.details = fields.details;
  }

  static {
    setName(this, 'KvError');
  }
}

/** Something was used after its end, or for two things at once. */
export class KvStateError<C extends ErrorCode = ErrorCode> extends KvError<C> {
  static {
    setName(this, 'KvStateError');
  }
}

/** There is not enough of something now: free or wait, then retry. */
export class KvCapacityError<C extends ErrorCode = ErrorCode> extends KvError<C> {
  static {
    setName(this, 'KvCapacityError');
  }
}

/** The machine refused: use another driver or machine. */
export class KvDriverError<C extends ErrorCode = ErrorCode> extends KvError<C> implements DriverCall {
  readonly call: string;
  readonly status: number;
  readonly statusName: string;

  /** @internal */
  constructor(message: string, fields: KvErrorFields<C>) {
    super(message, fields);
    const { call, status, statusName } = fields.details as DriverCall;
    this.call = call;
    this.status = status;
    this.statusName = statusName;
  }

  static {
    setName(this, 'KvDriverError');
  }
}

/** The caller's own signal stopped the operation: stop quietly. Its `name` is `AbortError`, as everywhere in Node. */
export class KvAbortError<C extends ErrorCode = ErrorCode> extends KvError<C> {
  static {
    setName(this, 'AbortError');
  }
}

/**
 * Sets `name` on the prototype, not enumerable, as in the built-in errors: stack traces start with it, inspection skips
 * it.
 */
function setName(errorClass: { readonly prototype: Error }, name: string): void {
  Object.defineProperty(errorClass.prototype, 'name', { value: name, configurable: true, writable: true });
}
