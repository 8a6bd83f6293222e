// ForkStamp: tells a fork of this process from the process itself, without a system call where the kernel can: a page
// that it empties in every copy of the process, also in one made without fork(). Threads: any.
#ifndef VKV_FORK_STAMP_H_
#define VKV_FORK_STAMP_H_

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace vkv {

class ForkStamp {
 public:
  ForkStamp() {
    void* const page = mmap(nullptr, Bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (madvise(page, Bytes(), MADV_WIPEONFORK) == 0)
      stamp_ = new (page) std::atomic<int>(1);
    else
      munmap(page, Bytes());
  }
  ~ForkStamp() {
    if (stamp_ != nullptr) munmap(stamp_, Bytes());
  }
  ForkStamp(const ForkStamp&) = delete;
  ForkStamp& operator=(const ForkStamp&) = delete;

  // True in a fork of the process that made it, for good.
  bool is_forked() const {
    return stamp_ != nullptr ? stamp_->load(std::memory_order_relaxed) == 0 : getpid() != owner_;
  }

 private:
  static size_t Bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

  // Not 0 in the process that made it. None where the system refuses the page, or to empty it (before Linux 4.14).
  std::atomic<int>* stamp_ = nullptr;
  const pid_t owner_ = getpid();
};

}  // namespace vkv

#endif  // VKV_FORK_STAMP_H_
