// MemoryShare: one driver's part of the memory that this process can still take. All shares of the process use one
// reading of the machine and its memory cgroups, so that a page is refused before the kernel ends the process.
//
// Obtainable is the available memory that the kernel reports, less the headroom kept for everything else, less
// pages that were created and never touched, since they will take memory later. The reading is renewed when an
// eighth of it is used up, or after a tenth of a second. What other processes take in between comes out of the
// headroom. Threads: any.
#ifndef VKV_HOST_MEMORY_SHARE_H_
#define VKV_HOST_MEMORY_SHARE_H_

#include <cstdint>
#include <string>

namespace vkv::host {

class PageFile;

class MemoryShare {
 public:
  // `file` holds the pages that are counted here, and outlives it. `root`: as in machine.h.
  MemoryShare(const PageFile& file, std::string root);
  ~MemoryShare();
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;

  // Counts the bytes of a new page; false when they are not obtainable.
  bool Take(uint64_t bytes);
  // A page is gone, its memory given back.
  void Give(uint64_t bytes);
  // Obtainable bytes now; reads them from the kernel.
  uint64_t available_bytes() const;

  // Around a fork of the process, in this order; the child has no shares.
  static void BeforeFork();
  static void AfterFork(bool is_child);

 private:
  // Pre: locked.
  uint64_t AvailableLocked() const;

  const PageFile& file_;
  const std::string root_;
  uint64_t taken_bytes_ = 0;  // guarded by the mutex of all shares, as are the links
  MemoryShare* next_ = nullptr;
  MemoryShare* previous_ = nullptr;
};

}  // namespace vkv::host

#endif  // VKV_HOST_MEMORY_SHARE_H_
