// PageFile: the sparse memory file that holds every page of a driver, and which part of it each page has.
//
// Each reservation has a range as long as itself, so that a page can lie at the offset of the address it is
// first mapped at: neighbours in memory are then neighbours in the file, and the kernel keeps one mapping for
// both. Other pages go to extents of their own. A range is never used again: pages outlive reservations.
// Threads: the caller locks around Take and Give calls; the rest may be called from any thread.
#ifndef VKV_HOST_PAGE_FILE_H_
#define VKV_HOST_PAGE_FILE_H_

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "host/system_calls.h"
#include "status.h"

namespace vkv::host {

class PageFile {
 public:
  explicit PageFile(SystemCalls& calls) : calls_(calls) {}
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  // kDriverUnavailable (kMemoryRefused) when the system refuses.
  Status Open();
  // Gives every page's memory back as soon as nothing maps it. Not called in a forked child: there is no
  // destructor.
  void Close();

  // An unused range for a reservation. kOutOfAddressSpace when the file cannot grow (EFBIG: RLIMIT_FSIZE).
  Status TakeRange(uint64_t bytes, uint64_t& offset);
  // An offset for a page outside all reservations' ranges. kOutOfDeviceMemory when the file cannot grow.
  Status TakeOffset(uint64_t page_bytes, uint64_t& offset);
  void GiveOffset(uint64_t page_bytes, uint64_t offset) { extents_[page_bytes].free.push_back(offset); }

  // Maps the bytes from `offset` on at an address inside a reservation; returns an errno.
  int Map(uint64_t address, uint64_t bytes, uint64_t offset, bool populate) {
    return calls_.Map(address, bytes, file_, offset, populate);
  }
  // Copies these bytes, which pages have. False: the system refuses.
  bool Read(void* to, uint64_t bytes, uint64_t offset) const {
    return pread(file_, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  }
  // Memory for a page, now instead of at its first touch; returns an errno.
  int Commit(uint64_t offset, uint64_t bytes);
  // Memory for a page in huge pages, now, if its size allows and the kernel can; otherwise it comes in
  // ordinary ones.
  void AddHugePages(uint64_t offset, uint64_t bytes);
  // Gives a page's memory back; returns an errno.
  int Punch(uint64_t offset, uint64_t bytes) { return calls_.Punch(file_, offset, bytes); }
  // The memory that the file holds now. (A process's resident size would count a page once for every mapping.)
  Status ResidentBytes(uint64_t& bytes) const;

 private:
  struct Extent {
    uint64_t next = 0;
    uint64_t end = 0;
    std::vector<uint64_t> free;  // given back, last in first out
  };

  int Grow(uint64_t bytes, uint64_t& offset);

  SystemCalls& calls_;
  int file_ = -1;
  uint64_t end_bytes_ = 0;
  std::atomic<bool> can_add_huge_pages_{true};  // until the kernel says otherwise
  std::map<uint64_t, Extent> extents_;          // by page size
};

}  // namespace vkv::host

#endif  // VKV_HOST_PAGE_FILE_H_
