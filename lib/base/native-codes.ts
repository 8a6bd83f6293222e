// Maps the numbers of the addon's Status to error codes and reasons. native/status.h has the same codes,
// native/driver.h the same reasons; a test compares them. Numbers are never reused.

import type { ErrorCode, UnavailableReason } from './details.js';

/** By the name in `enum class Code` of native/status.h: its number, and the error code. */
export const nativeCodes = {
  kOutOfPages: { number: 1, code: 'KV_OUT_OF_PAGES' },
  kOutOfDeviceMemory: { number: 2, code: 'KV_OUT_OF_DEVICE_MEMORY' },
  kOutOfAddressSpace: { number: 3, code: 'KV_OUT_OF_ADDRESS_SPACE' },
  kOutOfMappings: { number: 4, code: 'KV_OUT_OF_MAPPINGS' },
  kDriverUnavailable: { number: 5, code: 'KV_DRIVER_UNAVAILABLE' },
  kDriverUnsupported: { number: 6, code: 'KV_DRIVER_UNSUPPORTED' },
  kDriverTooOld: { number: 7, code: 'KV_DRIVER_TOO_OLD' },
  kDriverCallFailed: { number: 8, code: 'KV_DRIVER_CALL_FAILED' },
  kDriverLost: { number: 9, code: 'KV_DRIVER_LOST' },
  kDriverMisuse: { number: 10, code: 'KV_DRIVER_MISUSE' },
  kSlotBusy: { number: 11, code: 'KV_SLOT_BUSY' },
  kClosed: { number: 12, code: 'KV_CLOSED' },
  kInternal: { number: 13, code: 'KV_INTERNAL' },
  kCopyOutOfRange: { number: 14, code: 'KV_COPY_OUT_OF_RANGE' },
  kLibraryUnavailable: { number: 15, code: 'KV_CUBLAS_UNAVAILABLE' },
  kKernelsRefused: { number: 16, code: 'KV_KERNELS_REFUSED' },
  kInvalidArgument: { number: 17, code: 'KV_INTERNAL' },
  kStoreUnavailable: { number: 18, code: 'KV_STORE_UNAVAILABLE' },
  kStoreLocked: { number: 19, code: 'KV_STORE_LOCKED' },
  kStoreForeign: { number: 20, code: 'KV_STORE_FOREIGN' },
  kStoreVersion: { number: 21, code: 'KV_STORE_VERSION' },
  kStoreFailed: { number: 22, code: 'KV_STORE_FAILED' },
  kOnnxUnavailable: { number: 23, code: 'KV_ONNX_UNAVAILABLE' },
  kOnnxFailed: { number: 24, code: 'KV_ONNX_FAILED' },
} as const satisfies Readonly<Record<string, { number: number; code: ErrorCode }>>;

/**
 * By the name in `enum class Unavailable` of native/driver.h: its number, which is `Status.what` of kDriverUnavailable,
 * and the reason.
 */
export const nativeReasons = {
  kNoLibrary: { number: 1, reason: 'no-library' },
  kNoDevice: { number: 2, reason: 'no-device' },
  kStubLibrary: { number: 3, reason: 'stub-library' },
  kInitFailed: { number: 4, reason: 'init-failed' },
  kNoSuchDevice: { number: 5, reason: 'no-such-device' },
  kMemoryRefused: { number: 6, reason: 'memory-refused' },
  kForked: { number: 7, reason: 'forked' },
} as const satisfies Readonly<Record<string, { number: number; reason: UnavailableReason }>>;

/** A code that a Status maps to. */
export type NativeErrorCode = (typeof nativeCodes)[keyof typeof nativeCodes]['code'];

const codeByNumber = new Map<number, NativeErrorCode>(
  Object.values(nativeCodes).map(({ number, code }) => [number, code]),
);
const reasonByNumber = new Map<number, UnavailableReason>(
  Object.values(nativeReasons).map(({ number, reason }) => [number, reason]),
);

/** The code of a Status that is not ok; `KV_INTERNAL` for a number that this version does not know. */
export function codeOfNative(number: number): NativeErrorCode {
  return codeByNumber.get(number) ?? 'KV_INTERNAL';
}

/** The reason of a Status of `kDriverUnavailable`. */
export function reasonOfNative(number: number): UnavailableReason {
  return reasonByNumber.get(number) ?? 'init-failed';
}
