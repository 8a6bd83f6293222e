#include "device_memory.h"

#include <algorithm>

namespace vkv {
namespace {

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

Status DeviceMemory::Open(Driver& driver, uint64_t bytes, std::unique_ptr<DeviceMemory>& memory) {
  std::unique_ptr<DeviceMemory> opened(new DeviceMemory(driver));
  VKV_RETURN_IF_ERROR(opened->Map(bytes));
  memory = std::move(opened);
  return Ok();
}

Status DeviceMemory::Map(uint64_t bytes) {
  const uint64_t step_bytes = driver_.info().default_page_bytes;
  const uint64_t pages = CeilDiv(bytes, std::max(kMostPageBytes / step_bytes, uint64_t{1}) * step_bytes);
  page_bytes_ = CeilDiv(CeilDiv(bytes, pages), step_bytes) * step_bytes;
  VKV_RETURN_IF_ERROR(driver_.Reserve(pages * page_bytes_, page_bytes_, address_));
  bytes_ = pages * page_bytes_;
  pages_.reserve(pages);
  while (mapped_bytes_ < bytes_) {
    const uint64_t address = address_ + mapped_bytes_;
    PageHandle page = 0;
    VKV_RETURN_IF_ERROR(driver_.CreatePage(page_bytes_, address, page));
    pages_.push_back(page);
    VKV_RETURN_IF_ERROR(driver_.Map(address, page_bytes_, page));
    mapped_bytes_ += page_bytes_;
  }
  return driver_.SetAccess(address_, bytes_);
}

Status DeviceMemory::Write(uint64_t at, const void* from, uint64_t bytes, std::optional<Stream> stream) {
  if (stream) VKV_RETURN_IF_ERROR(driver_.SynchronizeStream(*stream));
  return driver_.Write(address_ + at, from, bytes);
}

Status DeviceMemory::Read(void* to, uint64_t at, uint64_t bytes, std::optional<Stream> stream) {
  if (stream) VKV_RETURN_IF_ERROR(driver_.SynchronizeStream(*stream));
  return driver_.Read(to, address_ + at, bytes);
}

// A failure here cannot be reported; closing the driver frees what stays.
DeviceMemory::~DeviceMemory() {
  if (mapped_bytes_ != 0) (void)driver_.Unmap(address_, mapped_bytes_);
  for (const PageHandle page : pages_) (void)driver_.ReleasePage(page, page_bytes_);
  if (bytes_ != 0) (void)driver_.FreeReservation(address_, bytes_);
}

}  // namespace vkv
