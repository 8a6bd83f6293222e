#include "host/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

namespace vkv::host {
namespace {

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

// Inaccessible addresses with an aligned range in them, for as long as it lives.
class ScratchRange {
 public:
  explicit ScratchRange(uint64_t bytes) : bytes_(bytes + kHugePageBytes) {
    start_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~ScratchRange() {
    if (start_ != MAP_FAILED) munmap(start_, bytes_);
  }
  ScratchRange(const ScratchRange&) = delete;
  ScratchRange& operator=(const ScratchRange&) = delete;

  void* aligned() const {
    if (start_ == MAP_FAILED) return nullptr;
    const auto start = reinterpret_cast<uint64_t>(start_);
    return reinterpret_cast<void*>((start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
  }

 private:
  const uint64_t bytes_;
  void* start_;
};

}  // namespace

int AddHugePages(int file, uint64_t offset, uint64_t bytes) {
  // The kernel collapses pages that have memory into one huge page, and refuses where one has none, so a byte of each
  // is written.
  for (uint64_t huge = 0; huge < bytes; huge += kHugePageBytes)
    if (fallocate(file, 0, static_cast<off_t>(offset + huge), 1) != 0) return errno;
  const ScratchRange scratch(bytes);
  void* const at = scratch.aligned();
  if (at == nullptr) return errno;
  if (mmap(at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset)) == MAP_FAILED) return errno;
  return madvise(at, bytes, MADV_COLLAPSE) == 0 ? 0 : errno;
}

void PreferHugePages(void* memory, uint64_t bytes) {
  const auto start = reinterpret_cast<uint64_t>(memory);
  const uint64_t first = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uint64_t end = (start + bytes) / kHugePageBytes * kHugePageBytes;
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace vkv::host
