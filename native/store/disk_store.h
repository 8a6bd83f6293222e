// DiskStore: a store of blocks on disk, one file each, as the addon sees it: every call returns at once, and its answer
// is delivered by a thread of the store. It has no list of blocks: the caller keeps that, and asks for one thing at a
// time of each block but reads. Owns the threads, the folder's lock and the files that are kept open. Calls from one
// thread; the delivery is called by any.
#ifndef VKV_STORE_DISK_STORE_H_
#define VKV_STORE_DISK_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/block_writer.h"
#include "store/store_folder.h"
#include "store/sync_timer.h"
#include "store/work_queue.h"

namespace vkv::store {

// The answer to the call of that id.
struct Answer {
  int64_t id = 0;  // 0: to none; the keys of blocks whose sync was refused are in `bytes`
  Status status;
  std::string path;             // what a failure is about
  std::vector<double> numbers;  // as the call says
  std::vector<uint8_t> bytes;
};

struct StoreStats {
  LastError last_error;
  uint64_t read_calls = 0, read_bytes = 0;  // of the system's, of all files
  uint64_t open_files = 0;                  // of blocks, kept for the next read
  bool is_direct = false;
};

class DiskStore {
 public:
  using Deliver = std::function<void(Answer&& answer)>;

  DiskStore(StoreOptions options, Deliver deliver);
  ~DiskStore() { Stop(); }

  // Starts the threads. kDriverCallFailed where the system refuses one.
  Status Start();

  // numbers: [blocks that have a file, bytes of the folder, of each unfinished file that could not be deleted its
  // bytes], bytes: the keys of these files' blocks
  void Open(int64_t id);
  // Headers of the blocks from the `first` on, `count` at most, in an order that stays. Files that hold nothing of
  // their name are deleted. bytes: of each, the bytes of its header (u32), zeros (u32), when its file was written (f64,
  // ms) and the header as docs/store-format.md has it, up to a multiple of 8; behind all, keys of blocks whose files
  // cannot be read or deleted. numbers: the bytes of each of these files. kStoreVersion where one is of another format.
  void Scan(int64_t id, uint64_t first, uint64_t count);
  // `payload` stays until the answer. numbers: [a PutState, a LeftFile]
  void Put(int64_t id, BlockHeader header, std::span<const uint8_t> payload);
  // As BlockReader::Get. numbers: [a ReadState], bytes: the stripes' sums
  void Get(int64_t id, const Key& key, uint64_t header_bytes, std::span<uint8_t> payload);
  // numbers: [a ReadState, bytes that were read from files, chunks]
  void GetTokens(int64_t id, const Key& key, TokenRequests requests);
  // numbers: [a ReadState of what was there, a PutState, bytes of the header and the file from now on, a LeftFile]
  void Reorder(int64_t id, const Key& key, std::vector<uint32_t> stored_to_logical, uint8_t level);
  // Every byte of a block. numbers: [a ReadState, bytes of its file]
  void Check(int64_t id, const Key& key);
  // Names of files. numbers: [1 where that is as durable as the options say], bytes: 1 of each that is still there
  void Remove(int64_t id, std::vector<std::string> names);
  void Sync(int64_t id);
  void Close(int64_t id);  // REQUIRES: all other calls were answered
  StoreStats Stats();
  const StoreCounters& counters() const { return context_.counters; }
  // Ends what is being done without an answer, and joins; the lock is free when the store is gone.
  void Stop();

 private:
  bool SyncAll();
  // `left`: keys of blocks whose files stay, and are none that can be read.
  Status ScanOne(const Key& key, std::unique_ptr<BlockFile> file, AlignedBuffer& scratch, Answer& answer,
                 std::vector<uint8_t>& left);

  StoreContext context_;
  OpenBlocks open_blocks_;
  BlockReader reader_;
  BlockWriter writer_;
  std::unique_ptr<StoreFolder> folder_;
  std::vector<Key> keys_;  // of files that there were when it was opened; constant from then on
  const Deliver deliver_;
  SyncTimer timer_;
  WorkQueue queue_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_DISK_STORE_H_
