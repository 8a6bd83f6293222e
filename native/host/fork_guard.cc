#include "host/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <mutex>

#include "driver.h"
#include "host/memory_share.h"
#include "host/process_mappings.h"

namespace vkv::host {
namespace {

// A mutable global because fork() is an event of the whole process and its handlers get no argument.
// Constant-initialised and trivially destroyed, so neither loading order nor process exit matters to it.
struct GuardList {
  std::mutex mutex;  // held across fork(), so that the child finds the list whole
  ForkGuard* first = nullptr;
  bool has_handlers = false;
};
constinit GuardList guard_list;

}  // namespace

Status ForkGuard::Open(std::unique_ptr<ForkGuard>& guard) {
  std::unique_ptr<ForkGuard> opened(new ForkGuard);
  std::lock_guard lock(guard_list.mutex);
  if (!guard_list.has_handlers) {
    // Undone by the C library when this code is unloaded.
    const int error = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    if (error != 0) {
      return SystemError(Code::kDriverUnavailable, "pthread_atfork", error,
                         static_cast<uint64_t>(Unavailable::kMemoryRefused));
    }
    guard_list.has_handlers = true;
  }
  opened->next_ = guard_list.first;
  if (opened->next_ != nullptr) opened->next_->previous_ = opened.get();
  guard_list.first = opened.get();
  opened->is_listed_ = true;
  guard = std::move(opened);
  return Ok();
}

ForkGuard::~ForkGuard() {
  if (!is_listed_ || is_forked()) return;
  std::lock_guard lock(guard_list.mutex);
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : guard_list.first) = next_;
}

void ForkGuard::Add(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(guard_list.mutex);
  ranges_.push_back({address, bytes});
}

int ForkGuard::Free(SystemCalls& calls, uint64_t address, uint64_t bytes) {
  std::lock_guard lock(guard_list.mutex);
  if (const int error = calls.Free(address, bytes)) return error;
  std::erase_if(ranges_, [address](const Range& range) { return range.address == address; });
  return 0;
}

void ForkGuard::BeforeFork() {
  guard_list.mutex.lock();
  MemoryShare::BeforeFork();
}

void ForkGuard::AfterForkInParent() {
  MemoryShare::AfterFork(/*is_child=*/false);
  guard_list.mutex.unlock();
}

// Runs in the child's only thread, before fork() returns there: uses only system calls and memory of its own.
void ForkGuard::AfterForkInChild() {
  uint64_t ranges = 0;
  for (ForkGuard* guard = guard_list.first; guard != nullptr; guard = guard->next_) {
    for (const Range& range : guard->ranges_) {
      ++ranges;
      void* const start = reinterpret_cast<void*>(range.address);
      constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
      // If the kernel refuses, the range must still go.
      if (mmap(start, range.bytes, PROT_NONE, kFlags, -1, 0) == MAP_FAILED) (void)munmap(start, range.bytes);
    }
  }
  guard_list.first = nullptr;  // these guards are the parent's; the child may open its own
  ProcessMappings::Reset(ranges);
  MemoryShare::AfterFork(/*is_child=*/true);
  guard_list.mutex.unlock();
}

}  // namespace vkv::host
