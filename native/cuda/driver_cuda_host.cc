// DriverCuda's calls on the CPU's own memory: what is registered, the device copies into by itself, and kernels write.
#include "cuda/driver_cuda.h"

namespace vkv::cuda {
namespace {

void* ToPointer(uint64_t address) { return reinterpret_cast<void*>(address); }

Subject About(uint64_t what, uint64_t how_many) {
  return {.what = static_cast<int64_t>(what), .how_many = static_cast<int64_t>(how_many)};
}

}  // namespace

Status DriverCuda::RegisterHost(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(Ready());
  const CUresult result = api_->cuMemHostRegister(ToPointer(address), bytes, kHostRegisterDeviceMap);
  VKV_RETURN_IF_ERROR(Check("cuMemHostRegister", result, About(address, bytes)));
  ledger_.AddRegistration(address);
  return Ok();
}

Status DriverCuda::UnregisterHost(uint64_t address) {
  VKV_RETURN_IF_ERROR(Ready());
  const bool was_live = ledger_.RemoveRegistration(address);
  const CUresult result = api_->cuMemHostUnregister(ToPointer(address));
  const Status status = CheckGivenBack("cuMemHostUnregister", result, About(address, 0));
  if (!status.ok() && was_live) ledger_.AddRegistration(address);
  return status;
}

Status DriverCuda::FindOnDevice(uint64_t address, uint64_t& on_device) {
  VKV_RETURN_IF_ERROR(Ready());
  CUdeviceptr found = 0;
  const CUresult result = api_->cuMemHostGetDevicePointer(&found, ToPointer(address), /*flags=*/0);
  VKV_RETURN_IF_ERROR(Check("cuMemHostGetDevicePointer", result, About(address, 0)));
  on_device = found;
  return Ok();
}

Status DriverCuda::Download(void* to, uint64_t from, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  if (bytes == 0) return Ok();
  Subject subject = About(from, bytes);
  subject.misuse = Code::kCopyOutOfRange;
  const CUresult result = api_->cuMemcpyDtoHAsync(to, from, bytes, reinterpret_cast<CUstream>(stream));
  NoteQueued(stream);
  return Check("cuMemcpyDtoHAsync", result, subject);
}

Status DriverCuda::Upload(uint64_t to, const void* from, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  if (bytes == 0) return Ok();
  Subject subject = About(to, bytes);
  subject.misuse = Code::kCopyOutOfRange;
  // From memory that is not registered the bytes are staged before the call returns.
  const CUresult result = api_->cuMemcpyHtoDAsync(to, from, bytes, reinterpret_cast<CUstream>(stream));
  NoteQueued(stream);
  return Check("cuMemcpyHtoDAsync", result, subject);
}

}  // namespace vkv::cuda
