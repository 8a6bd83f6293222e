// Ranges of memory whose pages may vanish, and the handler of SIGBUS that puts zeros where one did; why, says
// mapped_file.h.
//
// The ranges are a list of nodes that are used again and never freed, so that the handler can read it without a lock in
// any thread at any time. Threads: any.
#ifndef VKV_HOST_BUS_ERRORS_H_
#define VKV_HOST_BUS_ERRORS_H_

#include <atomic>
#include <cstdint>

#include "status.h"

namespace vkv::host {

struct MappedRange {
  std::atomic<uint64_t> begin{0};
  std::atomic<uint64_t> end{0};             // 0: not in use
  std::atomic<bool> has_lost_pages{false};  // zeros are in place of some
  MappedRange* next = nullptr;              // does not change once the handler can see it
};

// From here on a page of [begin, end) that is gone reads as zeros, and is noted. Fails with kDriverCallFailed where the
// handler cannot be installed.
Status AddMappedRange(uint64_t begin, uint64_t end, MappedRange*& range);
// Before the addresses go back to the kernel.
void RemoveMappedRange(MappedRange* range);

}  // namespace vkv::host

#endif  // VKV_HOST_BUS_ERRORS_H_
