// What the rest of the package uses of the errors: one catalogue, stable codes, a recovery for each.

export { catalogue } from './catalogue.js';
export {
  KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError, type CodedError,
} from './classes.js';
export { createError, isKvError } from './create-error.js';
export type {
  CatalogueEntry, DriverCall, ErrorClass, ErrorCode, ErrorDetails, Recovery, RemoteRefusal, UnavailableReason,
} from './details.js';
export { codeOfNative, nativeCodes, nativeReasons, reasonOfNative, type NativeErrorCode } from './native-codes.js';
