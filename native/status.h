// Status: the result of every native call that can fail.
//
// It carries a code, the driver call that failed and its result, and some numbers. It owns no memory and holds no text:
// TypeScript renders the message from the catalogue in lib/base. The numbers of each code are fixed
// (lib/base/native-codes.ts maps them to the catalogue); add at the end, never renumber.
#ifndef VKV_STATUS_H_
#define VKV_STATUS_H_

#include <cstdint>

namespace vkv {

enum class Code : int32_t {
  kOk = 0,
  kOutOfPages = 1,  // the pool's budget is used up            what: pages needed    how_many: pages available
  kOutOfDeviceMemory =
      2,  // the driver refused a page in budget     what: bytes asked     how_many: pages created so far
  kOutOfAddressSpace = 3,  // a reservation was refused               what: bytes asked
  kOutOfMappings = 4,      // host: too many kernel mappings          what: mappings needed how_many: the limit
                           // kept, or the kernel's where it refused   others: those of other host drivers; -1: the
                           // limit is this driver's alone
  kDriverUnavailable = 5,  // no such driver on this machine          what: an Unavailable (driver.h)  how_many: device
  kDriverUnsupported = 6,  // the device cannot do it                 what: device ordinal
  kDriverTooOld = 7,       // an entry point is missing               what: driver version
  kDriverCallFailed = 8,   // any other refusal of the driver         what: address or handle  how_many: bytes
  kDriverLost = 9,         // sticky failure: nothing works any more
  kDriverMisuse = 10,      // the call broke a precondition           what: address or handle  how_many: bytes
  kSlotBusy = 11,          // the mapper or a quarantine holds it     what: slot
  kClosed = 12,            // used after close
  kInternal = 13,          // an invariant does not hold: our bug     what, how_many: see call
  kCopyOutOfRange = 14,    // bytes outside mapped memory             what: address         how_many: bytes
  kLibraryUnavailable = 15,  // cuBLAS; call: dlopen, or the entry point that it lacks
  kKernelsRefused = 16,      // the driver refused an image of kernels; its log is returned beside the Status
  kInvalidArgument = 17,     // an argument of a wrong type or range: our bug      what: the value, where there is one
  // Of a disk store; the path comes beside the Status.
  kStoreUnavailable = 18,  // the system refused a call on its folder
  kStoreLocked = 19,       // open elsewhere                          what: the process, 0 where unknown
  kStoreForeign = 20,      // the folder holds something else
  kStoreVersion = 21,      // written by another version            what: its format   how_many: the one of this version
  kStoreFailed = 22,       // a write or sync was refused
  // Of onnxruntime; its message comes beside the Status.
  kOnnxUnavailable = 23,  // no library of it, or too old             call: dlopen, or what is missing
  kOnnxFailed = 24,       // it refused a graph or a run              what: its own code
};

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  const char* call = "";         // static string: the driver's or system's call, e.g. "cuMemMap", "mmap"
  int32_t result = 0;            // what that call returned: a CUresult, an errno
  const char* result_name = "";  // static string: "CUDA_ERROR_OUT_OF_MEMORY", "ENOMEM"
  int64_t what = 0;
  int64_t how_many = 0;
  int64_t others = 0;

  bool ok() const { return code == Code::kOk; }
};

inline Status Ok() { return {}; }

inline Status Fail(Code code, const char* call, int64_t what = 0, int64_t how_many = 0) {
  return {code, call, 0, "", what, how_many, 0};
}

}  // namespace vkv

// Returns from the enclosing function when `expression` failed.
#define VKV_RETURN_IF_ERROR(expression)                                               \
  do {                                                                                \
    if (::vkv::Status vkv_status = (expression); !vkv_status.ok()) return vkv_status; \
  } while (false)

#endif  // VKV_STATUS_H_
