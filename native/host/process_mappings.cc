#include "host/process_mappings.h"

#include <atomic>

namespace vkv::host {
namespace {

// A mutable global because the limit it is held against is the process's. Constant-initialised and trivially
// destroyed.
constinit std::atomic<uint64_t> mappings_in_use{0};

}  // namespace

uint64_t ProcessMappings::in_use() { return mappings_in_use.load(std::memory_order_relaxed); }

void ProcessMappings::Change(int64_t mappings) {
  mappings_in_use.fetch_add(static_cast<uint64_t>(mappings), std::memory_order_relaxed);
}

void ProcessMappings::Reset(uint64_t mappings) { mappings_in_use.store(mappings, std::memory_order_relaxed); }

}  // namespace vkv::host
