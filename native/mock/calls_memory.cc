// MockDevice's entry points for addresses and physical memory.
#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "mock/mock_call.h"

namespace vkv::mock {
namespace {

constexpr CUdevice kDevice = 0;
constexpr uint64_t kHostPageBytes = 4096;

bool IsOnDevice(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == kDevice;
}

bool IsPageOfDevice(const CUmemAllocationProp* prop) {
  return prop != nullptr && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE && IsOnDevice(prop->location) &&
         prop->win32HandleMetaData == nullptr;
}

bool IsAccess(const CUmemAccessDesc& desc) {
  const bool is_known = desc.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || desc.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                        desc.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return is_known && IsOnDevice(desc.location);
}

// What a new page holds with `has_garbage`: NaN in every float format.
constexpr uint8_t kGarbage = 0xff;

}  // namespace

bool MockDevice::IsGranular(uint64_t address, uint64_t bytes) const {
  return bytes != 0 && bytes % options_.granularity_bytes == 0 && address % options_.granularity_bytes == 0 &&
         address + bytes > address;
}

CUresult MockDevice::cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Call call(*this, CallKind::cuMemGetInfo);
  if (call.is_refused()) return call.result();
  if (free_bytes == nullptr || total_bytes == nullptr) return call.Break(rules::kOutput);
  *total_bytes = pages_.memory_bytes();
  *free_bytes = pages_.free_bytes();
  return call.result();
}

CUresult MockDevice::cuMemGetAllocationGranularity(size_t* granularity_bytes, const CUmemAllocationProp* prop,
                                                   CUmemAllocationGranularity_flags /*option*/) {
  Call call(*this, CallKind::cuMemGetAllocationGranularity);
  if (call.is_refused()) return call.result();
  if (granularity_bytes == nullptr) return call.Break(rules::kOutput);
  if (!IsPageOfDevice(prop)) return call.Break(rules::kProperties);
  *granularity_bytes = options_.granularity_bytes;
  return call.result();
}

CUresult MockDevice::cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment_bytes, CUdeviceptr hint,
                                         unsigned long long flags) {
  Call call(*this, CallKind::cuMemAddressReserve, {.bytes = bytes});
  if (call.is_refused()) return call.result();
  if (address == nullptr) return call.Break(rules::kOutput);
  if (flags != 0) return call.Break(rules::kFlags);
  if (bytes == 0 || bytes % kHostPageBytes != 0 || hint % kHostPageBytes != 0) return call.Break(rules::kHostPages);
  if (alignment_bytes != 0 && !std::has_single_bit(alignment_bytes)) return call.Break(rules::kAlignment);
  const uint64_t aligned_to = std::lcm(std::max<uint64_t>(alignment_bytes, 1), options_.granularity_bytes);
  const uint64_t room_bytes = options_.address_space_bytes - addresses_.reserved_bytes();
  if (bytes > room_bytes || aligned_to > room_bytes) return call.Answer(CUDA_ERROR_OUT_OF_MEMORY);
  uint64_t reserved = 0;
  if (!backing_->Reserve(bytes, aligned_to, reserved)) return call.Answer(CUDA_ERROR_OUT_OF_MEMORY);
  addresses_.AddReservation(reserved, bytes);
  *address = call.arguments().address = reserved;
  return call.result();
}

CUresult MockDevice::cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  Call call(*this, CallKind::cuMemAddressFree, {.address = address, .bytes = bytes});
  if (call.is_refused()) return call.result();
  if (const Rule rule = addresses_.CheckReservation(address, bytes)) return call.Break(rule);
  addresses_.RemoveReservation(address);
  backing_->Free(address, bytes);
  return call.result();
}

CUresult MockDevice::cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                                 unsigned long long flags) {
  Call call(*this, CallKind::cuMemCreate, {.bytes = bytes});
  if (call.is_refused()) return call.result();
  if (handle == nullptr) return call.Break(rules::kOutput);
  if (flags != 0) return call.Break(rules::kFlags);
  if (!IsGranular(0, bytes)) return call.Break(rules::kGranularity);
  if (!IsPageOfDevice(prop)) return call.Break(rules::kProperties);
  uint64_t created = 0;
  if (!pages_.Create(bytes, created)) return call.Answer(CUDA_ERROR_OUT_OF_MEMORY);
  *handle = call.arguments().handle = created;
  return call.result();
}

CUresult MockDevice::cuMemRelease(CUmemGenericAllocationHandle handle) {
  Call call(*this, CallKind::cuMemRelease, {.handle = handle});
  if (call.is_refused()) return call.result();
  if (pages_.FindLive(handle) == nullptr) return call.Break(rules::kLivePage);
  pages_.DropReference(handle);
  return call.result();
}

CUresult MockDevice::cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const auto at = reinterpret_cast<uint64_t>(address);
  Call call(*this, CallKind::cuMemRetainAllocationHandle, {.address = at});
  if (call.is_refused()) return call.result();
  if (handle == nullptr) return call.Break(rules::kOutput);
  const Mapping* mapping = addresses_.Find(at);
  if (mapping == nullptr) return call.Break(rules::kMapped);
  pages_.AddReference(mapping->page);
  *handle = call.arguments().handle = mapping->page;
  return call.result();
}

CUresult MockDevice::cuMemMap(CUdeviceptr address, size_t bytes, size_t offset_bytes,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  Call call(*this, CallKind::cuMemMap, {.address = address, .bytes = bytes, .handle = handle});
  if (call.is_refused()) return call.result();
  if (flags != 0) return call.Break(rules::kFlags);
  if (offset_bytes != 0) return call.Break(rules::kOffset, CUDA_ERROR_NOT_SUPPORTED);
  if (!IsGranular(address, bytes)) return call.Break(rules::kGranularity);
  const Page* page = pages_.FindLive(handle);
  if (page == nullptr) return call.Break(rules::kLivePage);
  if (page->bytes != bytes) return call.Break(rules::kWholePage, CUDA_ERROR_NOT_SUPPORTED);
  if (const Rule rule = addresses_.CheckUnmapped(address, bytes)) return call.Break(rule);
  if (addresses_.mappings() >= backing_->mapping_limit()) return call.Answer(CUDA_ERROR_OPERATING_SYSTEM);
  addresses_.AddMapping({address, bytes, handle, CU_MEM_ACCESS_FLAGS_PROT_NONE});
  pages_.AddMapping(handle);
  return call.result();
}

CUresult MockDevice::cuMemUnmap(CUdeviceptr address, size_t bytes) {
  Call call(*this, CallKind::cuMemUnmap, {.address = address, .bytes = bytes});
  if (call.is_refused()) return call.result();
  if (!IsGranular(address, bytes)) return call.Break(rules::kGranularity);
  const Rule rule = addresses_.CheckWholeMappings(address, bytes);
  if (rule != nullptr && !(rule == rules::kNoHole && options_.unmaps_holes)) return call.Break(rule);
  if (options_.unmap_waits && !DoAll(streams_.Take(streams_.PendingAnywhere()))) return call.Answer(lost_);
  // A real device faults later, when the work runs; here the call that causes it fails at once.
  if (streams_.IsBusy(address, bytes)) return call.BreakDevice(rules::kBusy);
  const std::vector<Mapping> mappings = addresses_.MappingsIn(address, bytes);
  backing_->Hide(address, bytes);
  addresses_.RemoveMappings(address, bytes);
  for (const Mapping& mapping : mappings) pages_.DropMapping(mapping.page);
  return call.result();
}

CUresult MockDevice::cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descs,
                                    size_t descs_count) {
  Call call(*this, CallKind::cuMemSetAccess, {.address = address, .bytes = bytes});
  if (call.is_refused()) return call.result();
  if (!IsGranular(address, bytes)) return call.Break(rules::kGranularity);
  if (descs == nullptr || descs_count != 1 || !IsAccess(descs[0])) return call.Break(rules::kAccess);
  if (const Rule rule = addresses_.CheckWholeMappings(address, bytes)) return call.Break(rule);
  const std::vector<Mapping> mappings = addresses_.MappingsIn(address, bytes);
  if (!Show(mappings, descs[0].flags)) {
    for (const Mapping& mapping : mappings) (void)Show({mapping}, mapping.access);  // as before
    return call.Answer(CUDA_ERROR_OPERATING_SYSTEM);
  }
  addresses_.SetAccess(address, bytes, descs[0].flags);
  return call.result();
}

CUresult MockDevice::cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  Call call(*this, CallKind::cuMemGetAccess, {.address = address});
  if (call.is_refused()) return call.result();
  if (flags == nullptr) return call.Break(rules::kOutput);
  if (location == nullptr || !IsOnDevice(*location)) return call.Break(rules::kKnownDevice);
  const Mapping* mapping = addresses_.Find(address);
  if (mapping == nullptr) return call.Break(rules::kMapped);
  *flags = mapping->access;
  return call.result();
}

bool MockDevice::Show(const std::vector<Mapping>& mappings, CUmemAccess_flags access) {
  for (size_t first = 0; first < mappings.size();) {
    // One system call shows neighbours in both the address range and the backing.
    const uint64_t offset = pages_.Mapped(mappings[first].page).offset;
    uint64_t bytes = 0;
    size_t next = first;
    while (next < mappings.size() && pages_.Mapped(mappings[next].page).offset == offset + bytes) {
      bytes += mappings[next++].bytes;
    }
    if (!backing_->Show(mappings[first].address, bytes, offset, access)) return false;
    first = next;
  }
  if (!options_.has_garbage || access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return true;
  for (const Mapping& mapping : mappings) {
    Page& page = pages_.Mapped(mapping.page);
    if (std::exchange(page.is_new, false)) backing_->Fill(mapping.address, kGarbage, mapping.bytes);
  }
  return true;
}

}  // namespace vkv::mock
