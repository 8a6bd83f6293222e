// FaultReport: says on stderr what native code hit where it wrote to a cache's addresses that have no memory, before
// the process ends by SIGSEGV as it would: tensor, slot, token, and which tokens of the slot have memory. For caches
// in the CPU's memory; opt-in, since a handler of SIGSEGV belongs to the process.
//
// It names addresses of open caches alone, and leaves every signal to the handlers before it. The handler reads nodes
// that are never freed and do not change once it can see them, but for `is_open`. Threads: the cache's owner.
#ifndef VKV_FAULT_REPORT_H_
#define VKV_FAULT_REPORT_H_

#include <cstdint>
#include <span>

#include "kv_cache.h"
#include "pattern.h"

namespace vkv {

class FaultReport {
 public:
  FaultReport() = default;
  ~FaultReport() { Close(); }
  FaultReport(const FaultReport&) = delete;
  FaultReport& operator=(const FaultReport&) = delete;

  // What the text says, and what it reads of each slot, which is valid until `Close`.
  struct Names {
    std::span<const double> tensors;  // their numbers
    int32_t set;                      // the number of the layer set
    const int32_t* rows;              // by slot: the row behind the last
    const int32_t* first;             // by slot: the first mapped row; null: the set keeps all tokens
  };

  // Names faults of this cache from here on. Fails with kDriverCallFailed where the handler cannot be installed.
  Status Open(const KvCache& cache, std::span<const TensorSpan> tensors, const Names& names);
  // Before the addresses go back. Idempotent.
  void Close();

 private:
  struct Region;
  struct Handler;
  Region* region_ = nullptr;
};

}  // namespace vkv

#endif  // VKV_FAULT_REPORT_H_
