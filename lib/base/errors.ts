// What the rest of the package uses of the errors: one catalogue, stable codes, a recovery for each.

export { catalogue } from './catalogue.js';
export {
  KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError,
  type CatalogueEntry, type CodedError, type ErrorClass, type Recovery,
} from './classes.js';
export { createError, isKvError } from './create-error.js';
export type { DriverCall, ErrorCode, ErrorDetails, UnavailableReason } from './details.js';
export { codeOfNative, nativeCodes, nativeReasons, reasonOfNative, type NativeErrorCode } from './native-codes.js';
