// SegmentLog: where records are appended: gives out room in the open segment, makes a new one when it is full, syncs
// segments and writes the footers of those that are over. Threads: any; hold no lock of the index.
#ifndef VKV_STORE_SEGMENT_LOG_H_
#define VKV_STORE_SEGMENT_LOG_H_

#include <memory>
#include <mutex>

#include "covered_work.h"
#include "store/store_context.h"

namespace vkv::store {

enum class Outcome : uint8_t { kDone, kFull, kNoSpace, kFailed };

// What room is for: a copy of the collector's and a list of removals may use what is kept back from records.
enum class RoomFor : uint8_t { kRecord, kCopy, kRemovals };

// Room in a segment, which takes no footer before the room is given back. Move-only by shared_ptr's rules: Release it
// once.
struct Room {
  std::shared_ptr<Segment> segment;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class SegmentLog {
 public:
  explicit SegmentLog(StoreContext& context) : context_(context) {}

  // The largest record that fits a segment, header and padding included, where the header has as many bytes.
  static uint64_t LargestRecord(uint64_t segment_bytes, uint64_t header_bytes);

  Outcome Reserve(uint64_t bytes, uint64_t header_bytes, RoomFor purpose, Room& room);
  // The record that has the room is done with it. Writes the footer where it was the last.
  void Release(const Room& room);
  // Nothing was written into the room: the next one may have it; or else it is a hole.
  void GiveBack(const Room& room);

  // Header and payload of one record into its room, in this order of writes: payload, header. Returns an errno.
  int Write(const Room& room, uint64_t offset, const void* data, uint64_t bytes);

  // What was written to the segment so far is on disk for good when this returns kDone. kFailed: the segment is never
  // written again, and what had not been synced is dropped.
  Outcome Sync(Segment& segment);
  // The same, also of payloads whose headers are still to be written.
  Outcome SyncPayloads(Segment& segment);
  // Every segment, and the folder.
  Outcome SyncAll();

  // Whether one more segment may be made for records.
  bool HasRoomForSegment();

  // The open segment takes no more, and gets its footer.
  void Finish();
  // The footer of a segment that takes no more; called once no writer is at work there.
  void Seal(Segment& segment);

 private:
  Outcome Create(RoomFor purpose, uint64_t needed_bytes, std::shared_ptr<Segment>& segment);
  bool IsWithinLimit(uint64_t more_bytes);
  Outcome CreateOf(uint64_t bytes, std::shared_ptr<Segment>& segment);
  bool WriteFooter(Segment& segment);
  void Retire(const std::shared_ptr<Segment>& segment);

  StoreContext& context_;
  std::mutex mutex_;  // guards the two below; held while a segment is made, so that one is made at a time
  std::shared_ptr<Segment> open_;
  uint64_t next_number_ = 0;    // 0: not known yet
  CoveredWork folder_changes_;  // files made, which a sync of the folder covers
};

}  // namespace vkv::store

#endif  // VKV_STORE_SEGMENT_LOG_H_
