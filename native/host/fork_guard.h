// ForkGuard: keeps a forked child away from its parent's pages, which are shared mappings: its writes would
// land in them. fork() replaces every guarded range in the child by inaccessible memory, and is_forked() is
// true there for good. vfork and clone(CLONE_VM) share the parent's addresses and are left alone.
// (MADV_DONTFORK would do it too, at 1.4 us a page.) Owns its entry in a list of this process's guards, and
// one page of memory. Threads: any.
#ifndef VKV_HOST_FORK_GUARD_H_
#define VKV_HOST_FORK_GUARD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "fork_stamp.h"
#include "host/system_calls.h"
#include "status.h"

namespace vkv::host {

class ForkGuard {
 public:
  // kDriverUnavailable (kMemoryRefused) when the system refuses.
  static Status Open(std::unique_ptr<ForkGuard>& guard);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // True in a fork of the process that opened this guard.
  bool is_forked() const { return stamp_.is_forked(); }

  // Guards a range that has no pages yet.
  void Add(uint64_t address, uint64_t bytes);
  // Ends the guard and the range itself, with no fork in between. Returns an errno; the range is then still
  // guarded.
  int Free(SystemCalls& calls, uint64_t address, uint64_t bytes);

 private:
  struct Range {
    uint64_t address;
    uint64_t bytes;
  };

  ForkGuard() = default;

  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();

  const ForkStamp stamp_;
  std::vector<Range> ranges_;  // guarded by the list's mutex, as are the links
  ForkGuard* next_ = nullptr;
  ForkGuard* previous_ = nullptr;
  bool is_listed_ = false;
};

}  // namespace vkv::host

#endif  // VKV_HOST_FORK_GUARD_H_
