// The errors of this package: one catalogue, stable codes, a recovery for each.

export { catalogue, type CatalogueEntry, type ErrorClass } from './catalogue.js';
export {
  KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError,
  type CodedError, type Recovery,
} from './classes.js';
export { createError, isKvError } from './create-error.js';
export type { DriverCall, ErrorCode, ErrorDetails, UnavailableReason } from './details.js';
export { codeOfNative, nativeCodes, nativeReasons, reasonOfNative, type NativeErrorCode } from './native-codes.js';
