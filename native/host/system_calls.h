// SystemCalls: the calls the host driver makes to change memory, and a script that makes the n-th of a kind
// fail.
//
// Owns nothing but the script, which exists so that tests reach every undo path of the driver in the shipped
// build. Threads: any. It validates and retries nothing: every call returns 0 or an errno, and a scripted
// failure reaches no kernel.
#ifndef VKV_HOST_SYSTEM_CALLS_H_
#define VKV_HOST_SYSTEM_CALLS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "status.h"

namespace vkv::host {

enum class SystemCall : uint8_t {
  kFtruncate,    // "ftruncate": makes room in the page file
  kMmapReserve,  // "mmap-reserve": a reservation's addresses
  kMmapMap,      // "mmap-map": pages into a reservation
  kMmapUnmap,    // "mmap-unmap": read-only zeros over pages
  kMunmap,       // "munmap": a reservation's end
  kFallocate,    // "fallocate": commits a page's memory, or gives it back
};
inline constexpr size_t kSystemCallKinds = 6;

// The kind called `name` above; false when there is none.
bool SystemCallFromName(std::string_view name, SystemCall& kind);

// A failure with the errno and its name ("ENOMEM", a static string).
Status SystemError(Code code, const char* call, int error, uint64_t what = 0, uint64_t how_many = 0);

class SystemCalls {
 public:
  // The `nth` call of `kind` from now on (1: the next one) fails once with `error`; 0 withdraws. One script
  // per kind.
  void FailNext(SystemCall kind, uint64_t nth, int error);

  // EFBIG instead of a deadly SIGXFSZ when the process's file size limit (RLIMIT_FSIZE) is in the way.
  int Truncate(int file, uint64_t bytes);
  // Inaccessible addresses where the kernel likes.
  int Reserve(uint64_t bytes, uint64_t& address);
  // Pages of `file` from `offset` on, readable and writable, in place of whatever is at `address`. `populate`
  // fills the page tables at once, so that a first touch takes no fault.
  int Map(uint64_t address, uint64_t bytes, int file, uint64_t offset, bool populate);
  // Read-only zeros in place of whatever is at `address`.
  int Unmap(uint64_t address, uint64_t bytes);
  // The addresses back to the kernel.
  int Free(uint64_t address, uint64_t bytes);
  // Memory for this part of the file now, or ENOSPC/ENOMEM.
  int Commit(int file, uint64_t offset, uint64_t bytes);
  // The memory of this part of the file back to the kernel; it reads as zeros afterwards, also where it is
  // mapped.
  int Punch(int file, uint64_t offset, uint64_t bytes);

 private:
  struct Script {
    std::atomic<uint64_t> calls_left{0};  // 0: none
    std::atomic<int> error{0};
  };

  int Scripted(SystemCall kind);

  std::array<Script, kSystemCallKinds> scripts_;
};

}  // namespace vkv::host

#endif  // VKV_HOST_SYSTEM_CALLS_H_
