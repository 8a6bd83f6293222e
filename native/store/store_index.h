// StoreIndex: which record is the one of its key, which are dead, and which removals are still needed. Rebuilt from the
// segments when a store is opened; the segments are the only truth. It does no I/O.
//
// A key's record is the one with the highest sequence number that no removal of the key exceeds. A removal is needed
// while a file has a record that only it keeps dead, or one is being written. Threads: any; one mutex guards it and the
// lists of its segments.
#ifndef VKV_STORE_STORE_INDEX_H_
#define VKV_STORE_STORE_INDEX_H_

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/segment.h"

namespace vkv::store {

// Counted from the segments.
struct IndexTotals {
  uint64_t records = 0, live_bytes = 0, dead_bytes = 0, file_bytes = 0, segments = 0, failed_segments = 0,
           tombstones = 0, unrecorded = 0;
};

class StoreIndex {
 public:
  std::mutex& mutex() { return mutex_; }

  // Of all that follow, those that end in `Locked` need the mutex held; the others take it.

  // A number above all so far.
  uint64_t TakeSequence();

  bool Has(const Key& key);
  bool Find(const Key& key, RecordPlace& place);

  // The level of the key's record is another from now on, in memory: its next copy is written with it.
  void SetLevel(const Key& key, uint8_t level);
  uint8_t LevelOf(const RecordPlace& place);

  // A put begins. False where the key has a record, or one on its way that no removal follows.
  bool BeginPut(const Key& key, uint64_t sequence);
  // It ends without a record.
  void AbandonPut(const Key& key);
  // It ends with the entry that Add returned: the record of its key, unless that was removed meanwhile.
  void Publish(Segment& segment, size_t entry);

  // Removes the keys' records, as of now and of all puts that have begun. Returns how many there were.
  uint64_t Remove(std::span<const Key> keys);
  // The removals that are in no file and still needed; they are the caller's until PutBack or Recorded.
  std::vector<Removal> TakeUnrecorded();
  void PutBack(std::span<const Removal> removals);
  void Recorded(Segment& segment, std::span<const Removal> removals, uint64_t ticket);
  bool HasUnrecorded();

  // Adds a record that was written, dead as yet, and its footer entry. Counts the write. Returns the entry.
  size_t Add(Segment& segment, const RecordHeader& header, std::span<const uint8_t> header_bytes);
  size_t AddRemovals(Segment& segment, const RecordHeader& header, std::span<const uint8_t> header_bytes);
  // Room that holds nothing that can be read.
  void AddHole(Segment& segment, uint64_t offset, uint64_t bytes);
  // Room that may hold a record whose header the disk refused to take: it may come back when the store is opened again.
  void AddDoubtful(Segment& segment, const RecordHeader& header);

  // A copy of a record begins: until it ends, no removal of its key is forgotten. False where the record is not there
  // any more.
  bool BeginCopy(const RecordPlace& place);
  // The same of the key's record, which is to be written anew; `sequence` is above all so far, and below that of every
  // removal that follows.
  bool BeginCopy(const Key& key, RecordPlace& place, uint64_t& sequence);
  void EndCopy(const Key& key);
  // A record was copied: the copy becomes the record of its key where the original still is.
  // False: it is not, and the copy is dead.
  bool Move(const RecordPlace& from, Segment& to, size_t to_entry);
  // The record cannot be read at all, and its place is given up.
  void Forget(const RecordPlace& place);

  // After a refused sync: what had not been synced in the segment is no record any more, and its removals are
  // unrecorded again.
  void DropUnsynced(Segment& segment);

  // Segments.
  void AddSegment(std::shared_ptr<Segment> segment);
  std::vector<std::shared_ptr<Segment>> Segments();
  // The one with the smallest number of at least `number`; null where there is none.
  std::shared_ptr<Segment> SegmentFrom(uint64_t number);
  uint64_t FileBytes();
  // Segments without a live record or a needed removal; they are marked as kDropping.
  std::vector<std::shared_ptr<Segment>> TakeDead();
  // The segment that is over of which the least share is alive, `passed` left out; null where there is none.
  // Sets the share.
  std::shared_ptr<Segment> Sparsest(std::span<const uint64_t> passed, double& life);
  std::vector<RecordPlace> LiveOf(Segment& segment);
  // The removals of the segment that are needed because of other files: they become unrecorded, to be written again.
  void ReleaseRemovals(Segment& segment);
  // The file is gone. With `is_certain` its records cannot come back, and removals because of them are needed no more.
  void Dropped(Segment& segment, bool is_certain);

  // Builds the index from the entries and removals of all segments, which are all dead as yet.
  void Rebuild();
  IndexTotals Totals();

 private:
  struct KeyState {
    Segment* segment = nullptr;  // of its record; null: none
    size_t entry = 0;
    uint32_t copies = 0;                 // dead records of the key in files
    uint32_t pending = 0;                // puts that have begun
    uint32_t copying = 0;                // copies of it that have begun
    uint64_t newest_pending = 0;         // the sequence of the last of them
    uint64_t removed = 0;                // the sequence of its last removal; 0: none
    Segment* removal_segment = nullptr;  // where that is written; null: nowhere
  };
  using States = std::unordered_map<Key, KeyState, KeyHash>;

  static bool NeedsRemoval(const KeyState& state) {
    return state.removed != 0 && (state.copies > 0 || state.pending > 0 || state.copying > 0);
  }
  bool FindLocked(const Key& key, RecordPlace& place);
  void KillLocked(KeyState& state);
  void EraseIfIdleLocked(States::iterator state);
  bool IsNeededLocked(const Segment& segment, const Removal& removal);
  // Dead entries of the segment by key.
  static std::unordered_map<Key, uint32_t, KeyHash> CopiesIn(const Segment& segment);
  bool IsNeededElsewhereLocked(const Segment& segment, const Removal& removal,
                               const std::unordered_map<Key, uint32_t, KeyHash>& copies);
  uint64_t LiveBytesLocked(const Segment& segment);

  std::mutex mutex_;
  uint64_t next_sequence_ = 1;
  States states_;
  std::map<uint64_t, std::shared_ptr<Segment>> segments_;  // by number
  std::vector<Removal> unrecorded_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_STORE_INDEX_H_
