#include "host/page_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "driver.h"
#include "host/huge_pages.h"

namespace vkv::host {
namespace {

// Ranges start at multiples of this: a page that can be made of huge pages is then aligned to them in the
// file too.
constexpr uint64_t kAlignmentBytes = kHugePageBytes;
constexpr uint64_t kExtentBytes = uint64_t{64} << 20;
constexpr uint64_t kLargestFileBytes = std::numeric_limits<int64_t>::max();  // 131,072 ranges of 64 TiB
// A signal interrupts fallocate half-way and undoes it; a profiler's timer can do so many times in a row.
constexpr int kCommitAttempts = 100;

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

int CreateFile() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Where vm.memfd_noexec is set only a file that can never be executed is allowed; kernels before 6.3 do not
  // know it.
  const int file = memfd_create("virtual-kv", kFlags | MFD_NOEXEC_SEAL);
  return file < 0 && errno == EINVAL ? memfd_create("virtual-kv", kFlags) : file;
}

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Status PageFile::Open() {
  file_ = CreateFile();
  const auto reason = static_cast<uint64_t>(Unavailable::kMemoryRefused);
  if (file_ < 0) return SystemError(Code::kDriverUnavailable, "memfd_create", errno, reason);
  // The file must never shrink under mapped pages: their next touch would be a SIGBUS.
  if (fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) == 0) return Ok();
  const Status status = SystemError(Code::kDriverUnavailable, "fcntl", errno, reason);
  Close();
  return status;
}

void PageFile::Close() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

int PageFile::Grow(uint64_t bytes, uint64_t& offset) {
  const uint64_t room = kLargestFileBytes - end_bytes_;
  if (bytes > room || room - bytes < kAlignmentBytes) return EFBIG;
  const uint64_t end = RoundUp(end_bytes_ + bytes, kAlignmentBytes);
  if (const int error = calls_.Truncate(file_, end)) return error;
  offset = end_bytes_;
  end_bytes_ = end;
  return 0;
}

Status PageFile::TakeRange(uint64_t bytes, uint64_t& offset) {
  const int error = Grow(bytes, offset);
  return error == 0 ? Ok() : SystemError(Code::kOutOfAddressSpace, "ftruncate", error, bytes);
}

Status PageFile::TakeOffset(uint64_t page_bytes, uint64_t& offset) {
  Extent& extent = extents_[page_bytes];
  if (!extent.free.empty()) {
    offset = extent.free.back();
    extent.free.pop_back();
    return Ok();
  }
  if (extent.next == extent.end) {
    const uint64_t bytes = RoundUp(std::max(kExtentBytes, page_bytes), page_bytes);
    if (const int error = Grow(bytes, extent.next))
      return SystemError(Code::kOutOfDeviceMemory, "ftruncate", error, page_bytes);
    extent.end = extent.next + bytes;
  }
  offset = extent.next;
  extent.next += page_bytes;
  return Ok();
}

int PageFile::Commit(uint64_t offset, uint64_t bytes) {
  int error = EINTR;
  for (int attempt = 0; error == EINTR && attempt < kCommitAttempts; ++attempt)
    error = calls_.Commit(file_, offset, bytes);
  return error;
}

void PageFile::AddHugePages(uint64_t offset, uint64_t bytes) {
  if (bytes % kHugePageBytes != 0 || !can_add_huge_pages_.load(std::memory_order_relaxed)) return;
  if (host::AddHugePages(file_, offset, bytes) == EINVAL) can_add_huge_pages_.store(false, std::memory_order_relaxed);
}

Status PageFile::ResidentBytes(uint64_t& bytes) const {
  struct stat status;
  if (fstat(file_, &status) != 0) return SystemError(Code::kDriverCallFailed, "fstat", errno);
  bytes = static_cast<uint64_t>(status.st_blocks) * 512;
  return Ok();
}

}  // namespace vkv::host
