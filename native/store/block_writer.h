// BlockWriter: writes blocks to files of their own, gives them another order, deletes them, and syncs what the
// durability asks for. A file is written under another name and takes its own when it is whole, so that what has a
// block's name was written to its end. Threads: any, each with a scratch buffer of its own; of one block one call at a
// time (syncs aside).
#ifndef VKV_STORE_BLOCK_WRITER_H_
#define VKV_STORE_BLOCK_WRITER_H_

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/block_reader.h"

namespace vkv::store {

// How a write ended: the values of `lib/device/native-store.ts`.
enum class PutState : uint8_t { kStored = 0, kNoSpace = 1, kFailed = 2 };

// What is left of a write that failed, since it could not be deleted: the same.
enum class LeftFile : uint8_t { kNone = 0, kNew = 1, kBlock = 2 };

struct Written {
  PutState state = PutState::kFailed;
  LeftFile left = LeftFile::kNone;
};

struct Reordered {
  Written written;
  ReadState read = ReadState::kIo;  // of what was there; unless it is kGood nothing was written
  uint64_t header_bytes = 0, file_bytes = 0;
};

class BlockWriter {
 public:
  // `hurry` is called when much is unsynced.
  BlockWriter(StoreContext& context, OpenBlocks& open_blocks, BlockReader& reader, std::function<void()> hurry)
      : context_(context), open_blocks_(open_blocks), reader_(reader), hurry_(std::move(hurry)) {}

  // kStored: durable where the options say so. Fills in the header's namespace and sums.
  Written Put(BlockHeader& header, std::span<const uint8_t> payload, AlignedBuffer& scratch);
  // Writes the block again with its rows in another order; the one that is there stays until the new one is on disk for
  // good. What is in this order already is left alone.
  Reordered Reorder(const Key& key, std::span<const uint32_t> stored_to_logical, uint8_t level, AlignedBuffer& scratch);
  // Deletes files. `is_left`: of each whether it is still there. False where that is not as durable as the options say.
  bool Remove(std::span<const std::string> names, std::vector<uint8_t>& is_left);
  // Has what was written and deleted before on disk for good, with durability `interval`. `lost`: names of blocks whose
  // sync was refused: nothing that follows makes them durable. False where anything was refused.
  bool SyncAll(std::vector<std::string>& lost);

 private:
  Written Write(const BlockHeader& header, std::span<const uint8_t> payload, bool syncs, AlignedBuffer& scratch);
  int WriteFile(const BlockFile& file, const BlockHeader& header, std::span<const uint8_t> payload,
                AlignedBuffer& scratch) const;
  // Refused: the next call tries again. That says nothing of what was done before: the system tells a refusal once.
  int SyncFolder();

  StoreContext& context_;
  OpenBlocks& open_blocks_;
  BlockReader& reader_;
  const std::function<void()> hurry_;

  std::mutex sync_mutex_;      // held by SyncAll: one that comes meanwhile ends when what was stored before is synced
  std::mutex unsynced_mutex_;  // guards the next two
  std::unordered_map<std::string, uint64_t> unsynced_;  // bytes of files, by name; with durability `interval`
  uint64_t unsynced_bytes_ = 0;

  std::atomic<uint64_t> folder_changes_{0}, folder_refusals_{0};
  std::mutex folder_mutex_;  // held by the thread that syncs it: one that waited finds its changes synced too
  uint64_t synced_changes_ = 0;
};

}  // namespace vkv::store

#endif  // VKV_STORE_BLOCK_WRITER_H_
