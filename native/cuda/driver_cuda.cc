#include "cuda/driver_cuda.h"

#include <utility>
#include <vector>

#include "cuda/device.h"

namespace vkv::cuda {
namespace {

// The scopes open on this thread, innermost last: the driver of each, and the capture mode that it replaced. Scopes
// nest, also those of different drivers, so one stack for each thread is enough.
struct OpenScope {
  const DriverCuda* driver;
  bool is_inner;  // within one of the same driver: it changed nothing
  CUstreamCaptureMode replaced;
};
thread_local std::vector<OpenScope> open_scopes;

// cuMemSetAccess may answer NOT_READY while streams are busy (seen under WSL2): wait for the device and ask
// again.
constexpr int kNotReadyRetries = 8;

uint64_t LargestPowerOfTwoIn(uint64_t bytes) { return bytes & (~bytes + 1); }

CUstream ToStream(Stream stream) { return reinterpret_cast<CUstream>(stream); }
CUevent ToEvent(Event event) { return reinterpret_cast<CUevent>(event); }
void* ToPointer(uint64_t address) { return reinterpret_cast<void*>(address); }

Subject About(uint64_t what, uint64_t how_many = 0) {
  return {.what = static_cast<int64_t>(what), .how_many = static_cast<int64_t>(how_many)};
}

Subject AboutCopy(uint64_t address, uint64_t bytes) {
  Subject subject = About(address, bytes);
  subject.misuse = Code::kCopyOutOfRange;
  return subject;
}

}  // namespace

Status DriverCuda::Open(std::shared_ptr<CudaApi> api, int device, const char* kind, std::unique_ptr<Driver>& driver) {
  DriverInfo info;
  info.kind = kind;
  info.kernels = "cuda";
  CUdevice handle = 0;
  CUcontext context = nullptr;
  VKV_RETURN_IF_ERROR(FindDevice(*api, device, handle, info));
  Status retained = ToStatus(*api, "cuDevicePrimaryCtxRetain", api->cuDevicePrimaryCtxRetain(&context, handle));
  if (!retained.ok()) {  // e.g. another process holds the device exclusively
    retained.code = Code::kDriverUnavailable;
    retained.what = static_cast<int64_t>(Unavailable::kInitFailed);
    retained.how_many = device;
    return retained;
  }
  std::unique_ptr<DriverCuda> opened(new DriverCuda(std::move(api), std::move(info), handle, context));
  {
    const DriverScope scope(*opened);
    VKV_RETURN_IF_ERROR(scope.status());
    VKV_RETURN_IF_ERROR(FindPageSizes(*opened->api_, opened->info_));
    VKV_RETURN_IF_ERROR(
        opened->Check("cuStreamCreate", opened->api_->cuStreamCreate(&opened->own_stream_, CU_STREAM_NON_BLOCKING)));
  }
  driver = std::move(opened);
  return Ok();
}

DriverCuda::DriverCuda(std::shared_ptr<CudaApi> api, DriverInfo info, CUdevice device, CUcontext context)
    : api_(std::move(api)), info_(std::move(info)), device_(device), context_(context) {}

DriverCuda::~DriverCuda() {
  if (!Enter().ok()) return;  // lost, forked, or the process is ending: nothing can be given back
  GiveBackLeftovers();
  if (own_stream_ != nullptr) (void)api_->cuStreamDestroy(own_stream_);
  for (const CUmodule module : modules_.Take()) (void)api_->cuModuleUnload(module);
  Leave();
  if (!is_lost()) (void)api_->cuDevicePrimaryCtxRelease(device_);
}

void DriverCuda::GiveBackLeftovers() {
  const Leftovers leftovers = ledger_.Count();
  if (leftovers == Leftovers{}) return;
  api_->NoteLeftovers(leftovers);
  const Ledger::Contents contents = ledger_.Take();
  (void)api_->cuCtxSynchronize();  // queued work may still use the leftovers
  for (const auto& [address, bytes] : contents.mappings) (void)api_->cuMemUnmap(address, bytes);
  for (const auto& [page, bytes] : contents.pages) (void)api_->cuMemRelease(page);
  for (const auto& [address, bytes] : contents.reservations) (void)api_->cuMemAddressFree(address, bytes);
  for (const uint64_t address : contents.registrations) (void)api_->cuMemHostUnregister(ToPointer(address));
  for (const Event event : contents.events) (void)api_->cuEventDestroy(ToEvent(event));
  for (const Stream stream : contents.streams) (void)api_->cuStreamDestroy(ToStream(stream));
}

Status DriverCuda::Ready() const {
  if (is_forked())
    return Fail(Code::kDriverUnavailable, "cuCtxPushCurrent", static_cast<int64_t>(Unavailable::kForked));
  if (!is_lost()) return Ok();
  const CUresult result = lost_result_.load(std::memory_order_acquire);
  const char* name = ResultName(result);
  return {Code::kDriverLost, lost_call_.load(std::memory_order_acquire), result, name != nullptr ? name : "", 0, 0};
}

Status DriverCuda::Check(const char* call, CUresult result, const Subject& subject) {
  const Status status = ToStatus(*api_, call, result, subject);
  if (status.code == Code::kDriverLost) Lose(call, result);
  return status;
}

Status DriverCuda::CheckGivenBack(const char* call, CUresult result, const Subject& subject) {
  const Status status = Check(call, result, subject);
  return IsGone(result) ? Ok() : status;
}

void DriverCuda::Lose(const char* call, CUresult result) {
  CUresult none = CUDA_SUCCESS;
  if (lost_result_.compare_exchange_strong(none, result, std::memory_order_acq_rel)) {
    lost_call_.store(call, std::memory_order_release);
  }
}

Status DriverCuda::Enter() {
  VKV_RETURN_IF_ERROR(Ready());
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUcontext current = nullptr;
  // Since the outer scope began, other code may have made another context current.
  const bool is_inner = !open_scopes.empty() && open_scopes.back().driver == this &&
                        api_->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context_;
  if (!is_inner) {
    VKV_RETURN_IF_ERROR(Check("cuCtxPushCurrent", api_->cuCtxPushCurrent(context_)));
    (void)api_->cuThreadExchangeStreamCaptureMode(&mode);  // where it is missing there are no modes to exchange
  }
  open_scopes.push_back({this, is_inner, mode});
  return Ok();
}

void DriverCuda::Leave() {
  auto [driver, is_inner, mode] = open_scopes.back();
  open_scopes.pop_back();
  if (is_inner || is_forked()) return;
  // Also after a loss: both calls touch this thread's state only, which others on the thread still use.
  (void)api_->cuThreadExchangeStreamCaptureMode(&mode);
  CUcontext popped = nullptr;
  (void)api_->cuCtxPopCurrent(&popped);
}

Status DriverCuda::QueryMemory(MemoryInfo& memory) {
  VKV_RETURN_IF_ERROR(Ready());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  VKV_RETURN_IF_ERROR(Check("cuMemGetInfo", api_->cuMemGetInfo(&free_bytes, &total_bytes)));
  const Leftovers live = ledger_.Count();
  memory.total_bytes = total_bytes;
  memory.free_bytes = free_bytes;
  memory.resident_bytes = api_->ResidentBytes(ledger_.page_bytes());
  memory.live_pages = live.pages;
  memory.live_reservations = live.reservations;
  memory.mappings = live.mappings;
  return Ok();
}

Status DriverCuda::Reserve(uint64_t bytes, uint64_t page_bytes, uint64_t& address) {
  VKV_RETURN_IF_ERROR(Ready());
  Subject subject = About(bytes);
  subject.out_of_memory = Code::kOutOfAddressSpace;
  // For a size beyond the device's memory CUDA may also return CUDA_ERROR_INVALID_VALUE.
  if (bytes != 0 && bytes % page_bytes == 0) subject.misuse = Code::kOutOfAddressSpace;
  CUdeviceptr reserved = 0;
  VKV_RETURN_IF_ERROR(Check(
      "cuMemAddressReserve",
      api_->cuMemAddressReserve(&reserved, bytes, LargestPowerOfTwoIn(page_bytes), /*hint=*/0, /*flags=*/0), subject));
  ledger_.AddReservation(reserved, bytes);
  address = reserved;
  return Ok();
}

Status DriverCuda::FreeReservation(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(Ready());
  uint64_t noted_bytes = 0;
  const bool was_live = ledger_.RemoveReservation(address, noted_bytes);
  const Status status =
      CheckGivenBack("cuMemAddressFree", api_->cuMemAddressFree(address, bytes), About(address, bytes));
  if (!status.ok() && was_live) ledger_.AddReservation(address, noted_bytes);
  return status;
}

Status DriverCuda::CreatePage(uint64_t page_bytes, uint64_t /*near*/, PageHandle& page) {
  VKV_RETURN_IF_ERROR(Ready());
  const CUmemAllocationProp properties = PageProperties(info_.device);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = api_->cuMemCreate(&handle, page_bytes, &properties, /*flags=*/0);
  if (result != CUDA_SUCCESS) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return Check("cuMemCreate", result, About(/*address=*/0, page_bytes));
    Subject subject = About(page_bytes, ledger_.Count().pages);
    subject.out_of_memory = Code::kOutOfDeviceMemory;
    return Check("cuMemCreate", result, subject);
  }
  ledger_.AddPage(handle, page_bytes);
  page = handle;
  return Ok();
}

Status DriverCuda::ReleasePage(PageHandle page, uint64_t page_bytes) {
  VKV_RETURN_IF_ERROR(Ready());
  uint64_t noted_bytes = 0;
  const bool was_live = ledger_.RemovePage(page, noted_bytes);
  const Status status = CheckGivenBack("cuMemRelease", api_->cuMemRelease(page), About(page, page_bytes));
  if (!status.ok() && was_live) ledger_.AddPage(page, noted_bytes);
  return status;
}

Status DriverCuda::Map(uint64_t address, uint64_t page_bytes, PageHandle page) {
  VKV_RETURN_IF_ERROR(Ready());
  const CUresult result = api_->cuMemMap(address, page_bytes, /*offset_bytes=*/0, page, /*flags=*/0);
  Status status = Check("cuMemMap", result, About(address, page_bytes));
  if (result == CUDA_ERROR_NOT_SUPPORTED) status.code = Code::kDriverMisuse;  // part of a page, or more than there is
  VKV_RETURN_IF_ERROR(status);
  ledger_.AddMapping(address, page_bytes);
  return Ok();
}

Status DriverCuda::SetAccess(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(Ready());
  const CUmemAccessDesc access = {PageProperties(info_.device).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = api_->cuMemSetAccess(address, bytes, &access, /*descs_count=*/1);
  for (int retry = 0; result == CUDA_ERROR_NOT_READY && retry < kNotReadyRetries; ++retry) {
    VKV_RETURN_IF_ERROR(Check("cuCtxSynchronize", api_->cuCtxSynchronize()));
    result = api_->cuMemSetAccess(address, bytes, &access, /*descs_count=*/1);
  }
  return Check("cuMemSetAccess", result, About(address, bytes));
}

Status DriverCuda::Unmap(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(Ready());
  std::map<uint64_t, uint64_t> removed;
  const bool is_whole = ledger_.RemoveMappings(address, bytes, removed);
  const CUresult result =
      is_whole || !api_->traits().unmaps_holes ? api_->cuMemUnmap(address, bytes) : CUDA_ERROR_INVALID_VALUE;
  const Status status = CheckGivenBack("cuMemUnmap", result, About(address, bytes));
  if (!status.ok()) ledger_.AddMappings(removed);
  return status;
}

// Between pageable memory and the device a call returns once the bytes are staged, so that the stream is waited for.
Status DriverCuda::Write(uint64_t to, const void* from, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(Ready());
  VKV_RETURN_IF_ERROR(WaitForDefault());
  if (bytes == 0) return Ok();
  VKV_RETURN_IF_ERROR(
      Check("cuMemcpyHtoDAsync", api_->cuMemcpyHtoDAsync(to, from, bytes, own_stream_), AboutCopy(to, bytes)));
  return Check("cuStreamSynchronize", api_->cuStreamSynchronize(own_stream_));
}

Status DriverCuda::Read(void* to, uint64_t from, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(Ready());
  VKV_RETURN_IF_ERROR(WaitForDefault());
  if (bytes == 0) return Ok();
  VKV_RETURN_IF_ERROR(
      Check("cuMemcpyDtoHAsync", api_->cuMemcpyDtoHAsync(to, from, bytes, own_stream_), AboutCopy(from, bytes)));
  return Check("cuStreamSynchronize", api_->cuStreamSynchronize(own_stream_));
}

Status DriverCuda::WaitForDefault() { return default_work_.HasUncovered() ? SynchronizeStream(/*stream=*/0) : Ok(); }

Status DriverCuda::Copy(uint64_t to, uint64_t from, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  if (bytes == 0) return Ok();
  const CUresult result = api_->cuMemcpyDtoDAsync(to, from, bytes, ToStream(stream));
  NoteQueued(stream);
  return Check("cuMemcpyDtoDAsync", result, AboutCopy(to, bytes));
}

Status DriverCuda::Fill(uint64_t to, uint8_t value, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  if (bytes == 0) return Ok();
  const CUresult result = api_->cuMemsetD8Async(to, value, bytes, ToStream(stream));
  NoteQueued(stream);
  return Check("cuMemsetD8Async", result, AboutCopy(to, bytes));
}

Status DriverCuda::CreateStream(Stream& stream) {
  VKV_RETURN_IF_ERROR(Ready());
  CUstream created = nullptr;
  // Non-blocking: the engine may use the default stream, which would wait for every other kind of stream.
  VKV_RETURN_IF_ERROR(Check("cuStreamCreate", api_->cuStreamCreate(&created, CU_STREAM_NON_BLOCKING)));
  stream = reinterpret_cast<Stream>(created);
  ledger_.AddStream(stream);
  return Ok();
}

Status DriverCuda::DestroyStream(Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  const bool was_live = ledger_.RemoveStream(stream);
  const Status status = CheckGivenBack("cuStreamDestroy", api_->cuStreamDestroy(ToStream(stream)), About(stream));
  if (!status.ok() && was_live) ledger_.AddStream(stream);
  return status;
}

Status DriverCuda::SynchronizeStream(Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  const uint64_t noted = default_work_.noted();  // the wait does not cover what is queued during it
  VKV_RETURN_IF_ERROR(Check("cuStreamSynchronize", api_->cuStreamSynchronize(ToStream(stream)), About(stream)));
  if (IsDefault(stream)) default_work_.Cover(noted);
  return Ok();
}

Status DriverCuda::RecordEvent(Stream stream, Event& event) {
  VKV_RETURN_IF_ERROR(Ready());
  CUevent created = nullptr;
  VKV_RETURN_IF_ERROR(Check("cuEventCreate", api_->cuEventCreate(&created, CU_EVENT_DISABLE_TIMING)));
  const Status recorded = Check("cuEventRecord", api_->cuEventRecord(created, ToStream(stream)), About(stream));
  if (!recorded.ok()) {
    if (!is_lost()) (void)api_->cuEventDestroy(created);
    return recorded;
  }
  event = reinterpret_cast<Event>(created);
  ledger_.AddEvent(event);
  return Ok();
}

Status DriverCuda::QueryEvent(Event event, bool& is_done) {
  VKV_RETURN_IF_ERROR(Ready());
  const CUresult result = api_->cuEventQuery(ToEvent(event));
  is_done = result == CUDA_SUCCESS;
  return result == CUDA_ERROR_NOT_READY ? Ok() : Check("cuEventQuery", result, About(event));
}

Status DriverCuda::SynchronizeEvent(Event event) {
  VKV_RETURN_IF_ERROR(Ready());
  return Check("cuEventSynchronize", api_->cuEventSynchronize(ToEvent(event)), About(event));
}

Status DriverCuda::WaitEvent(Stream stream, Event event) {
  VKV_RETURN_IF_ERROR(Ready());
  return Check("cuStreamWaitEvent", api_->cuStreamWaitEvent(ToStream(stream), ToEvent(event), /*flags=*/0),
               About(stream));
}

Status DriverCuda::DestroyEvent(Event event) {
  VKV_RETURN_IF_ERROR(Ready());
  const bool was_live = ledger_.RemoveEvent(event);
  const Status status = CheckGivenBack("cuEventDestroy", api_->cuEventDestroy(ToEvent(event)), About(event));
  if (!status.ok() && was_live) ledger_.AddEvent(event);
  return status;
}

}  // namespace vkv::cuda
