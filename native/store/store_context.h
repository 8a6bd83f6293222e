// StoreContext: what all parts of an open store share: its options, its folder, the calls it makes of the system and
// what is counted. Owned by DiskStore.
#ifndef VKV_STORE_STORE_CONTEXT_H_
#define VKV_STORE_STORE_CONTEXT_H_

#include <errno.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "store/block_header.h"
#include "store/file_calls.h"

namespace vkv::store {

enum class Durability : uint8_t { kNone = 0, kInterval = 1, kSync = 2 };

// Of the file that says whose a folder is.
inline constexpr const char* kIdentityName = "identity";

struct StoreOptions {
  std::string directory;
  Key name_space;
  uint32_t chunk_bytes = kMostChunkBytes;  // of blocks that are put
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
      failed_writes{0}, failed_syncs{0}, syncs{0}, foreign_files{0}, damaged_files{0};
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

  // Opens a file with O_DIRECT where the options want it and the file system can. Returns an errno.
  int Open(const std::string& path, int flags, std::unique_ptr<BlockFile>& file) {
    bool direct = can_direct;
    const int error = BlockFile::Open(calls, path, flags, direct, file);
    if (error == 0 && !direct) can_direct = false;
    return error;
  }

  // Names are those of docs/store-format.md: a block's key in hexadecimal digits, and an ending.
  std::string PathOf(const std::string& name) const { return folder + "/" + name; }

  // Whether a file whose call failed with `error` was deleted. Not where its folder is away: renamed, or behind another
  // mount. It may come back.
  bool IsDeleted(int error) const {
    uint64_t bytes = 0;
    return error == ENOENT && calls.SizeOf(PathOf(kIdentityName), bytes) == 0;
  }

  const StoreOptions options;
  const FileCalls calls;
  std::string folder;  // of the namespace; set when the store is opened
  StoreCounters counters;
  std::atomic<bool> can_direct;  // false once the file system refused O_DIRECT

 private:
  std::mutex error_mutex;
  LastError last_error;
};

// Of a block's file, and of the one that is to take its place.
inline std::string BlockName(const Key& key) { return key.Hex() + ".block"; }
inline std::string NewBlockName(const Key& key) { return key.Hex() + ".new"; }

}  // namespace vkv::store

#endif  // VKV_STORE_STORE_CONTEXT_H_
