// Segment: one file of a store and what is known of it in memory: which records and removals lie where, and how far it
// is synced. Its lists are its StoreIndex's to change; its file is anyone's to read. The file is closed with the last
// reference, so a reader goes on in a file that was deleted.
#ifndef VKV_STORE_SEGMENT_H_
#define VKV_STORE_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "store/block_file.h"
#include "store/store_format.h"

namespace vkv::store {

enum class SegmentState : uint8_t {
  kOpen,      // takes records
  kFull,      // takes no more, and has no footer (yet)
  kSealed,    // has a footer
  kFailed,    // a sync was refused: nothing is written there any more
  kDropping,  // is being deleted
};

enum class EntryState : uint8_t {
  kLive,  // the record of its key
  kDead,  // a record that is removed or not yet published, or its remains
  kHole,  // room that was taken and never became a record
  kRemovals,
};

struct Entry {
  Key key;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t sequence = 0;
  uint64_t ticket = 0;  // of the segment when it had been written
  uint32_t header_bytes = 0;
  EntryState state = EntryState::kDead;
  uint8_t level = 0;  // that of the next copy: it may be newer than the one in the header
};

struct WrittenRemoval {
  Removal removal;
  uint64_t ticket = 0;
};

struct Segment : std::enable_shared_from_this<Segment> {
  Segment(Epoch epoch_of, uint64_t number_of, std::unique_ptr<BlockFile> file_of, uint64_t bytes)
      : epoch(epoch_of), number(number_of), file(std::move(file_of)), file_bytes(bytes) {}

  const Epoch epoch;
  const uint64_t number;
  const std::unique_ptr<BlockFile> file;

  // Guarded by the index's mutex.
  SegmentState state = SegmentState::kOpen;
  SegmentState state_before_drop = SegmentState::kOpen;
  uint64_t file_bytes;          // its size
  uint64_t tail = kBlockBytes;  // where the next record goes
  uint64_t footer_room = 0;     // bytes of the footer's entries of everything before the tail
  uint32_t writers = 0;         // between Reserve and Release
  bool is_sealing = false;
  bool is_for_removals = false;  // made beyond the limit, or in the last of a disk's room: takes no records
  bool has_unread = false;       // part of it could not be read when it was opened: it is left as it is
  uint64_t ticket = 0;           // writes that are over
  uint64_t synced_ticket = 0;    // of them, those on disk for good
  std::vector<Entry> entries;
  std::vector<WrittenRemoval> removals;
  std::vector<uint8_t> footer;  // until it is sealed
  uint64_t footer_offset = 0;   // once it is sealed
  uint64_t footer_bytes = 0;

  std::mutex sync_mutex;  // held by the thread that syncs: a thread that waited for it finds its writes synced too
};

// Where a record lies; keeps its file open.
struct RecordPlace {
  std::shared_ptr<Segment> segment;
  Key key;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t sequence = 0;
  uint32_t header_bytes = 0;
  size_t entry = 0;
};

}  // namespace vkv::store

#endif  // VKV_STORE_SEGMENT_H_
