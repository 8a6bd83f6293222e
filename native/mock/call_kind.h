// CallKind: names the entry points of the simulated device, for scripts, counts and the journal. Generated from
// the list of entry points; the names are CUDA's. Any thread; no state.
#ifndef VKV_MOCK_CALL_KIND_H_
#define VKV_MOCK_CALL_KIND_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cuda/entry_points.h"

namespace vkv::mock {

enum class CallKind : uint8_t {
#define VKV_KIND(name, version, symbol, need, parameters, arguments) name,
  VKV_CUDA_ENTRY_POINTS(VKV_KIND)
#undef VKV_KIND
};

inline constexpr const char* kCallNames[] = {
#define VKV_NAME(name, version, symbol, need, parameters, arguments) #name,
    VKV_CUDA_ENTRY_POINTS(VKV_NAME)
#undef VKV_NAME
};

inline constexpr size_t kCallKinds = sizeof(kCallNames) / sizeof(kCallNames[0]);

inline const char* CallName(CallKind kind) { return kCallNames[static_cast<size_t>(kind)]; }

// False when there is no entry point of this name.
inline bool FindCallKind(std::string_view name, CallKind& kind) {
  for (size_t index = 0; index < kCallKinds; ++index) {
    if (name != kCallNames[index]) continue;
    kind = static_cast<CallKind>(index);
    return true;
  }
  return false;
}

// What a call needs before it may do anything.
enum class Needs : uint8_t { kNothing, kDriver, kContext };

constexpr Needs NeedsOf(CallKind kind) {
  switch (kind) {
    case CallKind::cuInit:
    case CallKind::cuDriverGetVersion:
    case CallKind::cuGetErrorName: return Needs::kNothing;
    case CallKind::cuDeviceGetCount:
    case CallKind::cuDeviceGet:
    case CallKind::cuDeviceGetName:
    case CallKind::cuDeviceGetAttribute:
    case CallKind::cuDeviceTotalMem:
    case CallKind::cuDevicePrimaryCtxRetain:
    case CallKind::cuDevicePrimaryCtxRelease:
    case CallKind::cuCtxPushCurrent:
    case CallKind::cuCtxPopCurrent:
    case CallKind::cuCtxGetCurrent:
    case CallKind::cuThreadExchangeStreamCaptureMode: return Needs::kDriver;
    default: return Needs::kContext;
  }
}

// Calls that concern only the calling thread or the driver; they still work when the device is lost.
constexpr bool SurvivesLoss(CallKind kind) {
  return NeedsOf(kind) == Needs::kNothing || kind == CallKind::cuCtxPushCurrent || kind == CallKind::cuCtxPopCurrent ||
         kind == CallKind::cuCtxGetCurrent || kind == CallKind::cuThreadExchangeStreamCaptureMode;
}

// Calls that a real driver runs one after another, from whichever thread.
constexpr bool IsSerialized(CallKind kind) {
  return kind >= CallKind::cuMemAddressReserve && kind <= CallKind::cuMemSetAccess;
}

}  // namespace vkv::mock

#endif  // VKV_MOCK_CALL_KIND_H_
