// MockDevice's entry points for the driver, its device and contexts.
#include <cstdio>

#include "mock/mock_call.h"

namespace vkv::mock {
namespace {

constexpr CUdevice kDevice = 0;
constexpr int kMultiprocessors = 16;

}  // namespace

CUresult MockDevice::cuInit(unsigned flags) {
  Call call(*this, CallKind::cuInit);
  if (call.is_refused()) return call.result();
  if (flags != 0) return call.Break(rules::kFlags);
  is_initialized_ = true;
  return call.result();
}

CUresult MockDevice::cuDriverGetVersion(int* version) {
  Call call(*this, CallKind::cuDriverGetVersion);
  if (call.is_refused()) return call.result();
  if (version == nullptr) return call.Break(rules::kOutput);
  *version = options_.driver_version;
  return call.result();
}

CUresult MockDevice::cuGetErrorName(CUresult error, const char** name) {
  Call call(*this, CallKind::cuGetErrorName);
  if (call.is_refused()) return call.result();
  if (name == nullptr) return call.Break(rules::kOutput);
  *name = cuda::ResultName(error);
  return *name != nullptr ? call.result() : call.Answer(CUDA_ERROR_INVALID_VALUE);
}

CUresult MockDevice::cuDeviceGetCount(int* count) {
  Call call(*this, CallKind::cuDeviceGetCount);
  if (call.is_refused()) return call.result();
  if (count == nullptr) return call.Break(rules::kOutput);
  *count = 1;
  return call.result();
}

CUresult MockDevice::cuDeviceGet(CUdevice* device, int ordinal) {
  Call call(*this, CallKind::cuDeviceGet);
  if (call.is_refused()) return call.result();
  if (device == nullptr) return call.Break(rules::kOutput);
  if (ordinal != kDevice) return call.Break(rules::kKnownDevice, CUDA_ERROR_INVALID_DEVICE);
  *device = kDevice;
  return call.result();
}

CUresult MockDevice::cuDeviceGetName(char* name, int name_bytes, CUdevice device) {
  Call call(*this, CallKind::cuDeviceGetName);
  if (call.is_refused()) return call.result();
  if (name == nullptr || name_bytes <= 0) return call.Break(rules::kOutput);
  if (device != kDevice) return call.Break(rules::kKnownDevice, CUDA_ERROR_INVALID_DEVICE);
  std::snprintf(name, static_cast<size_t>(name_bytes), "%s", options_.name.c_str());
  return call.result();
}

CUresult MockDevice::cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Call call(*this, CallKind::cuDeviceGetAttribute);
  if (call.is_refused()) return call.result();
  if (value == nullptr) return call.Break(rules::kOutput);
  if (device != kDevice) return call.Break(rules::kKnownDevice, CUDA_ERROR_INVALID_DEVICE);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; return call.result();
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = kMultiprocessors; return call.result();
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = options_.compute_capability / 10; return call.result();
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = options_.compute_capability % 10; return call.result();
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = options_.has_virtual_memory ? 1 : 0;
      return call.result();
  }
  return call.Answer(CUDA_ERROR_INVALID_VALUE);
}

CUresult MockDevice::cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  Call call(*this, CallKind::cuDeviceTotalMem);
  if (call.is_refused()) return call.result();
  if (bytes == nullptr) return call.Break(rules::kOutput);
  if (device != kDevice) return call.Break(rules::kKnownDevice, CUDA_ERROR_INVALID_DEVICE);
  *bytes = options_.memory_bytes;
  return call.result();
}

CUresult MockDevice::cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Call call(*this, CallKind::cuDevicePrimaryCtxRetain);
  if (call.is_refused()) return call.result();
  if (context == nullptr) return call.Break(rules::kOutput);
  if (device != kDevice) return call.Break(rules::kKnownDevice, CUDA_ERROR_INVALID_DEVICE);
  if (!contexts_.is_retained() && !pages_.Occupy(options_.context_bytes)) return call.Answer(CUDA_ERROR_OUT_OF_MEMORY);
  *context = contexts_.Retain();
  return call.result();
}

CUresult MockDevice::cuDevicePrimaryCtxRelease(CUdevice device) {
  Call call(*this, CallKind::cuDevicePrimaryCtxRelease);
  if (call.is_refused()) return call.result();
  if (device != kDevice) return call.Break(rules::kKnownDevice, CUDA_ERROR_INVALID_DEVICE);
  if (!contexts_.Release()) return call.Break(rules::kRetainedContext, CUDA_ERROR_INVALID_CONTEXT);
  if (!contexts_.is_retained()) pages_.Vacate(options_.context_bytes);
  return call.result();
}

CUresult MockDevice::cuCtxPushCurrent(CUcontext context) {
  Call call(*this, CallKind::cuCtxPushCurrent, {.handle = reinterpret_cast<uint64_t>(context)});
  if (call.is_refused()) return call.result();
  if (context == nullptr || !contexts_.is_retained()) {
    return call.Break(rules::kLiveContext, CUDA_ERROR_INVALID_CONTEXT);
  }
  contexts_.Push(context);
  return call.result();
}

CUresult MockDevice::cuCtxPopCurrent(CUcontext* context) {
  Call call(*this, CallKind::cuCtxPopCurrent);
  if (call.is_refused()) return call.result();
  CUcontext popped = nullptr;
  if (!contexts_.Pop(popped)) return call.Break(rules::kNoContextToPop, CUDA_ERROR_INVALID_CONTEXT);
  if (context != nullptr) *context = popped;
  call.arguments().handle = reinterpret_cast<uint64_t>(popped);
  return call.result();
}

CUresult MockDevice::cuCtxGetCurrent(CUcontext* context) {
  Call call(*this, CallKind::cuCtxGetCurrent);
  if (call.is_refused()) return call.result();
  if (context == nullptr) return call.Break(rules::kOutput);
  *context = contexts_.Current();
  return call.result();
}

CUresult MockDevice::cuCtxSynchronize() {
  Call call(*this, CallKind::cuCtxSynchronize);
  if (call.is_refused() || BreaksCapture(call, nullptr)) return call.result();
  return call.Complete(streams_.PendingAnywhere());
}

CUresult MockDevice::cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  Call call(*this, CallKind::cuThreadExchangeStreamCaptureMode);
  if (call.is_refused()) return call.result();
  if (mode == nullptr) return call.Break(rules::kOutput);
  *mode = contexts_.ExchangeCaptureMode(*mode);
  return call.result();
}

}  // namespace vkv::mock
