// CoveredWork: counts pieces of work that a wait must cover (kernels of a stream, changes of a folder), and how many of
// them a wait that succeeded has covered. A flag that is cleared before the wait would let every other thread go on
// during it; a flag that is cleared after it would forget what was noted meanwhile.
//
// Note a piece after it is queued and before its caller returns: work that is noted first may be queued behind a wait
// that then seems to cover it. To wait: take noted(), wait, and Cover() that number where the wait succeeded.
// Threads: any.
#ifndef VKV_COVERED_WORK_H_
#define VKV_COVERED_WORK_H_

#include <atomic>
#include <cstdint>

namespace vkv {

class CoveredWork {
 public:
  void Note() { noted_.fetch_add(1, std::memory_order_acq_rel); }

  uint64_t noted() const { return noted_.load(std::memory_order_acquire); }

  // Whether a piece was noted that no wait has covered yet, also while one goes on.
  bool HasUncovered() const { return covered_.load(std::memory_order_acquire) < noted(); }

  // A wait that began when `noted` pieces were noted has succeeded. A later wait may have ended first.
  void Cover(uint64_t noted) {
    uint64_t covered = covered_.load(std::memory_order_relaxed);
    while (covered < noted && !covered_.compare_exchange_weak(covered, noted, std::memory_order_acq_rel)) {
    }
  }

 private:
  std::atomic<uint64_t> noted_{0};
  std::atomic<uint64_t> covered_{0};
};

}  // namespace vkv

#endif  // VKV_COVERED_WORK_H_
