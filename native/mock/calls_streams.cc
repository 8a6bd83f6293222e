// MockDevice's entry points for bytes, streams and events, and the execution of queued work.
#include <utility>

#include "mock/mock_call.h"

namespace vkv::mock {
namespace {

constexpr uint64_t kHostPageBytes = 4096;

uint64_t ToHandle(CUstream stream) { return reinterpret_cast<uint64_t>(stream); }
uint64_t ToHandle(CUevent event) { return reinterpret_cast<uint64_t>(event); }

}  // namespace

CUresult MockDevice::cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  Call call(*this, CallKind::cuMemcpyHtoD, {.address = to, .bytes = bytes});
  if (call.is_refused()) return call.result();
  if (from == nullptr && bytes != 0) return call.Break(rules::kHostPointer);
  if (!addresses_.CanAccess(to, bytes, /*is_write=*/true)) return call.Break(rules::kWritable);
  if (!backing_->has_memory()) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  if (!IsFree(call, /*stream=*/0)) return call.result();
  if (!DoAll(streams_.Take(streams_.PendingOn(/*stream=*/0))))
    return call.Answer(lost_);  // in order with the default stream
  backing_->Copy(to, reinterpret_cast<uint64_t>(from), bytes);
  return call.result();
}

// From memory that is not registered the bytes are taken at once, from registered memory when the stream comes to it.
CUresult MockDevice::cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  Call call(*this, CallKind::cuMemcpyHtoDAsync, {.address = to, .bytes = bytes, .stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (from == nullptr && bytes != 0) return call.Break(rules::kHostPointer);
  if (!addresses_.CanAccess(to, bytes, /*is_write=*/true)) return call.Break(rules::kWritable);
  if (!backing_->has_memory()) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  const auto address = reinterpret_cast<uint64_t>(from);
  const HostRegistrations::Cover cover = registrations_.CoverOf(address, bytes);
  if (cover == HostRegistrations::Cover::kPart) return call.Break(rules::kOneRegistration);
  if (cover == HostRegistrations::Cover::kWhole && bytes != 0) {
    return Queue(call, ToHandle(stream), {WorkKind::kUpload, {{to, bytes, true}, {address, bytes, false}}});
  }
  const auto* const content = static_cast<const uint8_t*>(from);
  Work work = {.kind = WorkKind::kUpload, .touches = {{to, bytes, true}}, .step = call.step()};
  work.parameter.assign(content, content + bytes);
  return Queue(call, ToHandle(stream), std::move(work));
}

CUresult MockDevice::cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  Call call(*this, CallKind::cuMemcpyDtoH, {.from = from, .bytes = bytes});
  if (call.is_refused()) return call.result();
  if (to == nullptr && bytes != 0) return call.Break(rules::kHostPointer);
  if (!addresses_.CanAccess(from, bytes, /*is_write=*/false)) return call.Break(rules::kReadable);
  if (!backing_->has_memory()) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  if (!IsFree(call, /*stream=*/0)) return call.result();
  if (!DoAll(streams_.Take(streams_.PendingOn(/*stream=*/0)))) return call.Answer(lost_);
  backing_->Copy(reinterpret_cast<uint64_t>(to), from, bytes);
  return call.result();
}

// Into memory that is not registered: the bytes are there when the call returns, as they are on a real device.
CUresult MockDevice::cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Call call(*this, CallKind::cuMemcpyDtoHAsync, {.from = from, .bytes = bytes, .stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (to == nullptr && bytes != 0) return call.Break(rules::kHostPointer);
  if (!addresses_.CanAccess(from, bytes, /*is_write=*/false)) return call.Break(rules::kReadable);
  if (!backing_->has_memory()) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  const auto address = reinterpret_cast<uint64_t>(to);
  const HostRegistrations::Cover cover = registrations_.CoverOf(address, bytes);
  if (cover == HostRegistrations::Cover::kPart) return call.Break(rules::kOneRegistration);
  if (!IsFree(call, ToHandle(stream)) || BreaksCapture(call, &stream)) return call.result();
  if (cover == HostRegistrations::Cover::kWhole && bytes != 0) {
    return Queue(call, ToHandle(stream), {WorkKind::kDownload, {{address, bytes, true}, {from, bytes, false}}});
  }
  if (!DoAll(streams_.Take(streams_.PendingOn(ToHandle(stream))))) return call.Answer(lost_);
  backing_->Copy(address, from, bytes);
  return call.result();
}

CUresult MockDevice::cuMemHostRegister(void* start, size_t bytes, unsigned flags) {
  const auto address = reinterpret_cast<uint64_t>(start);
  Call call(*this, CallKind::cuMemHostRegister, {.address = address, .bytes = bytes});
  if (call.is_refused()) return call.result();
  if ((flags & ~cuda::kHostRegisterDeviceMap) != 0) return call.Break(rules::kFlags);
  if (address == 0 || bytes == 0 || address % kHostPageBytes != 0 || bytes % kHostPageBytes != 0 ||
      !addresses_.MappingsIn(address, bytes).empty()) {
    return call.Break(rules::kRegistrable);
  }
  if (registrations_.CoverOf(address, bytes) != HostRegistrations::Cover::kNone) {
    return call.Break(rules::kRegisteredOnce, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  }
  registrations_.Add(address, {.bytes = bytes, .is_for_device = (flags & cuda::kHostRegisterDeviceMap) != 0});
  return call.result();
}

CUresult MockDevice::cuMemHostGetDevicePointer(CUdeviceptr* found, void* start, unsigned flags) {
  const auto address = reinterpret_cast<uint64_t>(start);
  Call call(*this, CallKind::cuMemHostGetDevicePointer, {.address = address});
  if (call.is_refused()) return call.result();
  if (found == nullptr) return call.Break(rules::kOutput);
  if (flags != 0) return call.Break(rules::kFlags);
  HostRegistrations::Range* const range = registrations_.At(address);
  if (range == nullptr || !range->is_for_device) return call.Break(rules::kRegisteredForDevice);
  if (range->on_device == 0) range->on_device = backing_->ShowAgain(address, range->bytes);
  *found = range->on_device;
  return call.result();
}

CUresult MockDevice::cuMemHostUnregister(void* start) {
  const auto address = reinterpret_cast<uint64_t>(start);
  Call call(*this, CallKind::cuMemHostUnregister, {.address = address});
  if (call.is_refused()) return call.result();
  const HostRegistrations::Range* const range = registrations_.At(address);
  if (range == nullptr) return call.Break(rules::kRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  call.arguments().bytes = range->bytes;
  // A real device waits for the copy, or faults in it; here the call that causes it fails at once.
  const bool is_in_kernel = range->on_device != 0 && streams_.IsBusy(range->on_device, range->bytes);
  if (is_in_kernel || streams_.IsBusy(address, range->bytes)) return call.BreakDevice(rules::kRegistrationInUse);
  if (range->on_device != 0) backing_->HideAgain(range->on_device, range->bytes);
  registrations_.Remove(address);
  return call.result();
}

CUresult MockDevice::cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Call call(*this, CallKind::cuMemcpyDtoDAsync,
            {.address = to, .from = from, .bytes = bytes, .stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (!addresses_.CanAccess(from, bytes, /*is_write=*/false)) return call.Break(rules::kReadable);
  if (!addresses_.CanAccess(to, bytes, /*is_write=*/true)) return call.Break(rules::kWritable);
  if (ShareMemory(addresses_.ExtentsOf(to, bytes), addresses_.ExtentsOf(from, bytes))) {
    return call.Break(rules::kOverlap);
  }
  return Queue(call, ToHandle(stream), {WorkKind::kCopy, {{to, bytes, true}, {from, bytes, false}}});
}

CUresult MockDevice::cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  Call call(*this, CallKind::cuMemsetD8Async, {.address = to, .bytes = bytes, .stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (!addresses_.CanAccess(to, bytes, /*is_write=*/true)) return call.Break(rules::kWritable);
  return Queue(call, ToHandle(stream), {WorkKind::kFill, {{to, bytes, true}}, value});
}

CUresult MockDevice::Queue(Call& call, uint64_t stream, Work work) {
  if (!IsFree(call, stream)) return call.result();
  if (streams_.IsCapturing(stream)) {
    streams_.Record(stream, std::move(work));
    return call.result();
  }
  streams_.Enqueue(stream, std::move(work));
  if (options_.streams == StreamMode::kManual) return call.result();
  return DoAll(streams_.Take(streams_.PendingOn(stream))) ? call.result() : call.Answer(lost_);
}

bool MockDevice::DoAll(const std::vector<Work>& works) {
  for (const Work& work : works) {
    if (lost_ != CUDA_SUCCESS || !Do(work)) return false;
  }
  return true;
}

bool MockDevice::Do(const Work& work) {
  const std::vector<Touch>& touches = work.touches;
  if (work.kind != WorkKind::kKernel && work.is_replayed && !CheckTouches(work, touches)) return false;
  if (work.kind == WorkKind::kCopy || work.kind == WorkKind::kDownload) {
    backing_->Copy(touches[0].address, touches[1].address, touches[0].bytes);
  } else if (work.kind == WorkKind::kUpload) {
    backing_->Copy(touches[0].address, SourceOf(work), touches[0].bytes);
  } else if (work.kind == WorkKind::kFill) {
    backing_->Fill(touches[0].address, work.value, touches[0].bytes);
  } else if (work.kind == WorkKind::kKernel) {
    return DoKernel(work);
  }
  return true;
}

bool MockDevice::IsFree(Call& call, uint64_t stream) {
  if (!streams_.IsLiveStream(stream)) {
    call.Break(rules::kLiveStream, CUDA_ERROR_INVALID_HANDLE);
    return false;
  }
  if (!StreamModel::IsDefault(stream) || !streams_.IsBlockingCaptured()) return true;
  streams_.InvalidateCaptures();
  call.Break(rules::kDefaultStream, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  return false;
}

bool MockDevice::BreaksCapture(Call& call, const CUstream* stream) {
  if (stream != nullptr ? !streams_.IsCapturing(ToHandle(*stream)) : !streams_.IsAnyCapturing()) return false;
  streams_.InvalidateCaptures();
  call.Break(rules::kNotWhileCapturing, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return true;
}

CUresult MockDevice::cuStreamCreate(CUstream* stream, unsigned flags) {
  Call call(*this, CallKind::cuStreamCreate);
  if (call.is_refused()) return call.result();
  if (stream == nullptr) return call.Break(rules::kOutput);
  call.arguments().handle = streams_.CreateStream((flags & CU_STREAM_NON_BLOCKING) == 0);
  *stream = reinterpret_cast<CUstream>(call.arguments().handle);
  return call.result();
}

CUresult MockDevice::cuStreamDestroy(CUstream stream) {
  Call call(*this, CallKind::cuStreamDestroy, {.handle = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  return call.EndOf(streams_.DestroyStream(ToHandle(stream)), rules::kLiveStream);
}

CUresult MockDevice::cuStreamSynchronize(CUstream stream) {
  Call call(*this, CallKind::cuStreamSynchronize, {.handle = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (!IsFree(call, ToHandle(stream)) || BreaksCapture(call, &stream)) return call.result();
  return call.Complete(streams_.PendingOn(ToHandle(stream)));
}

CUresult MockDevice::cuStreamQuery(CUstream stream) {
  Call call(*this, CallKind::cuStreamQuery, {.handle = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (!IsFree(call, ToHandle(stream)) || BreaksCapture(call, &stream)) return call.result();
  return streams_.IsIdle(ToHandle(stream)) ? call.result() : call.Answer(CUDA_ERROR_NOT_READY);
}

CUresult MockDevice::cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  Call call(*this, CallKind::cuStreamWaitEvent, {.handle = ToHandle(event), .stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (flags != 0) return call.Break(rules::kFlags);
  if (!streams_.IsLiveEvent(ToHandle(event))) return call.Break(rules::kLiveEvent, CUDA_ERROR_INVALID_HANDLE);
  if (!IsFree(call, ToHandle(stream)) || BreaksCapture(call, &stream)) return call.result();
  streams_.Wait(ToHandle(stream), ToHandle(event));
  return call.result();
}

CUresult MockDevice::cuEventCreate(CUevent* event, unsigned /*flags*/) {
  Call call(*this, CallKind::cuEventCreate);
  if (call.is_refused()) return call.result();
  if (event == nullptr) return call.Break(rules::kOutput);
  call.arguments().handle = streams_.CreateEvent();
  *event = reinterpret_cast<CUevent>(call.arguments().handle);
  return call.result();
}

CUresult MockDevice::cuEventRecord(CUevent event, CUstream stream) {
  Call call(*this, CallKind::cuEventRecord, {.handle = ToHandle(event), .stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (!streams_.IsLiveEvent(ToHandle(event))) return call.Break(rules::kLiveEvent, CUDA_ERROR_INVALID_HANDLE);
  if (!IsFree(call, ToHandle(stream)) || BreaksCapture(call, &stream)) return call.result();
  streams_.Record(ToHandle(event), ToHandle(stream));
  return call.result();
}

CUresult MockDevice::cuEventQuery(CUevent event) {
  Call call(*this, CallKind::cuEventQuery, {.handle = ToHandle(event)});
  if (call.is_refused()) return call.result();
  if (!streams_.IsLiveEvent(ToHandle(event))) return call.Break(rules::kLiveEvent, CUDA_ERROR_INVALID_HANDLE);
  return streams_.IsDone(ToHandle(event)) ? call.result() : call.Answer(CUDA_ERROR_NOT_READY);
}

CUresult MockDevice::cuEventSynchronize(CUevent event) {
  Call call(*this, CallKind::cuEventSynchronize, {.handle = ToHandle(event)});
  if (call.is_refused()) return call.result();
  if (!streams_.IsLiveEvent(ToHandle(event))) return call.Break(rules::kLiveEvent, CUDA_ERROR_INVALID_HANDLE);
  return call.Complete(streams_.PendingBefore(ToHandle(event)));
}

CUresult MockDevice::cuEventDestroy(CUevent event) {
  Call call(*this, CallKind::cuEventDestroy, {.handle = ToHandle(event)});
  if (call.is_refused()) return call.result();
  return call.EndOf(streams_.DestroyEvent(ToHandle(event)), rules::kLiveEvent);
}

}  // namespace vkv::mock
