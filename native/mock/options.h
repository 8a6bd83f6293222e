// MockOptions: the options of a simulated device. Plain data, validated by the caller.
#ifndef VKV_MOCK_OPTIONS_H_
#define VKV_MOCK_OPTIONS_H_

#include <cstdint>
#include <string>

#include "mock/simulated_kernel.h"

namespace vkv::mock {

enum class BackingMode { kReal, kNone };
enum class StreamMode { kImmediate, kManual };

struct MockOptions {
  std::string name = "mock device";
  uint64_t memory_bytes = uint64_t{1} << 30;         // for pages
  uint64_t address_space_bytes = uint64_t{1} << 47;  // for reservations together
  uint64_t granularity_bytes = uint64_t{2} << 20;    // a multiple of 4,096
  // kReal: pages are host memory, mapped at their addresses, so that the CPU can use those; at most 15,000
  // mappings. kNone: pages are counted only; copies and fills are checked and move nothing, and the bytes
  // cannot be read or written.
  BackingMode backing = BackingMode::kReal;
  // kImmediate: work is done when it is queued. kManual: when its stream is completed, or a call waits for it.
  StreamMode streams = StreamMode::kImmediate;
  bool has_garbage = false;     // kReal: a new page's bytes are 0xff, which is NaN in every float format
  uint64_t context_bytes = 0;   // of memory_bytes: taken while the context is retained
  uint64_t module_bytes = 0;    // and by each loaded module
  bool has_slow_waits = false;  // waits for streams, events and the context take time, in which other calls run
  bool unmap_waits = false;     // cuMemUnmap waits for all queued work first, as a driver may
  bool unmaps_holes = false;    // cuMemUnmap passes over addresses without a page in silence, as CUDA's does
  bool has_virtual_memory = true;
  int32_t driver_version = 13000;
  int32_t compute_capability = 90;
  FindSimulatedKernel find_kernel = nullptr;  // null: a device without kernels
  uint64_t journal_entries = 4096;            // how many of the latest calls the journal keeps
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_OPTIONS_H_
