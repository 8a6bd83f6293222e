// ProcessMappings: the kernel mappings of all host drivers of this process together. The kernel's limit is the
// process's, so a driver that counted only its own would let two of them exhaust it. Every environment (main
// thread or worker) loads the same addon, and so shares this one count.
//
// Counts booked mappings only: those of V8, malloc and threads are not read (it would cost milliseconds); half of the
// limit is kept for them. Threads: any; drivers that check and book at once may exceed their limit by two mappings
// each.
#ifndef VKV_HOST_PROCESS_MAPPINGS_H_
#define VKV_HOST_PROCESS_MAPPINGS_H_

#include <cstdint>

namespace vkv::host {

class ProcessMappings {
 public:
  // The limit of all host drivers together, of `kernel_limit` (vm.max_map_count).
  static uint64_t Share(uint64_t kernel_limit) { return kernel_limit / 2; }
  // The most that a driver may be given on request: an eighth always stays for everything else.
  static uint64_t MostOnRequest(uint64_t kernel_limit) { return kernel_limit - kernel_limit / 8; }

  static uint64_t in_use();
  // Books more (or fewer) of a driver's mappings.
  static void Change(int64_t mappings);
  // For a forked child, where no driver of the parent's works any more.
  static void Reset(uint64_t mappings);
};

}  // namespace vkv::host

#endif  // VKV_HOST_PROCESS_MAPPINGS_H_
