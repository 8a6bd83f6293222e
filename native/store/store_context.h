// StoreContext: what all parts of an open store share: its options, its files' calls and what is counted. Owned by
// DiskStore.
#ifndef VKV_STORE_STORE_CONTEXT_H_
#define VKV_STORE_STORE_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "store/file_calls.h"
#include "store/header_cache.h"
#include "store/store_format.h"
#include "store/store_index.h"

namespace vkv::store {

enum class Durability : uint8_t { kNone = 0, kInterval = 1, kSync = 2 };

struct StoreOptions {
  std::string directory;
  Key name_space;
  uint64_t limit_bytes = 0;
  uint64_t segment_bytes = 0;
  uint32_t chunk_bytes = kChunkBytes;  // of records that are put
  uint32_t threads = 1;
  Durability durability = Durability::kInterval;
  bool wants_direct = true;
  std::shared_ptr<FileFaults> faults;
};

// The last call that the system refused.
struct LastError {
  const char* call = "";
  int error = 0;
};

struct StoreCounters {
  std::atomic<uint64_t> puts{0}, put_bytes{0}, gets{0}, get_bytes{0}, corrupt_reads{0}, failed_reads{0},
      failed_writes{0}, failed_syncs{0}, syncs{0}, unsynced_bytes{0}, foreign_files{0};
};

struct StoreContext {
  explicit StoreContext(StoreOptions given)
      : options(std::move(given)), calls(options.faults), can_direct(options.wants_direct) {}

  // Keeps the failure of a call for statistics; returns it.
  int Failed(const char* call, int error, std::atomic<uint64_t>& counter) {
    ++counter;
    std::lock_guard lock(error_mutex);
    last_error = {call, error};
    return error;
  }
  LastError Last() {
    std::lock_guard lock(error_mutex);
    return last_error;
  }

  const StoreOptions options;
  const FileCalls calls;
  std::string folder;  // of the namespace; set by Open
  StoreIndex index;
  HeaderCache headers;
  StoreCounters counters;
  std::atomic<bool> can_direct;  // false once the file system refused O_DIRECT
  std::atomic<bool> can_allocate{true};

 private:
  std::mutex error_mutex;
  LastError last_error;
};

}  // namespace vkv::store

#endif  // VKV_STORE_STORE_CONTEXT_H_
