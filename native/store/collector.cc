#include "store/collector.h"

#include <errno.h>

#include <algorithm>

namespace vkv::store {

void Collector::DropDead(Collected& collected) {
  const std::vector<std::shared_ptr<Segment>> dead = context_.index.TakeDead();
  if (dead.empty()) return;
  // In every durability: what makes these files dead must not be lost after they are.
  if (log_.SyncAll() != Outcome::kDone) {
    std::lock_guard lock(context_.index.mutex());
    for (const std::shared_ptr<Segment>& segment : dead)
      if (segment->state == SegmentState::kDropping) segment->state = segment->state_before_drop;
    return;
  }
  std::vector<std::shared_ptr<Segment>> deleted;
  for (const std::shared_ptr<Segment>& segment : dead) {
    const int error = context_.calls.Unlink(segment->file->path());
    if (error == 0 || error == ENOENT) {
      deleted.push_back(segment);
      continue;
    }
    context_.Failed("unlink", error, context_.counters.failed_writes);
    std::lock_guard lock(context_.index.mutex());
    segment->state = segment->state_before_drop;
  }
  if (deleted.empty()) return;
  context_.calls.Pass("segments-deleted");
  bool is_certain = true;
  if (const int error = context_.calls.SyncFolder(context_.folder)) {
    context_.Failed("fsync", error, context_.counters.failed_syncs);
    is_certain = false;
  }
  context_.calls.Pass("deletions-synced");
  for (const std::shared_ptr<Segment>& segment : deleted) {
    collected.freed_bytes += segment->file_bytes;
    ++collected.dropped_segments;
    context_.index.Dropped(*segment, is_certain);
  }
}

Collected Collector::Collect(AlignedBuffer& scratch) {
  std::lock_guard lock(mutex_);
  Collected collected;
  std::vector<uint64_t> passed;
  DropDead(collected);
  while (const std::shared_ptr<Segment> segment = context_.index.Sparse(passed)) {
    passed.push_back(segment->number);
    if (!Empty(*segment, scratch, collected)) break;
    DropDead(collected);
  }
  return collected;
}

bool Collector::Empty(Segment& segment, AlignedBuffer& scratch, Collected& collected) {
  struct Copied {
    RecordPlace from;
    Room room;
    size_t entry;
  };
  std::vector<Copied> copies;
  bool is_whole = true;
  for (const RecordPlace& place : context_.index.LiveOf(segment)) {
    Copied copy = {place, {}, 0};
    bool is_lost = false;
    if (!context_.index.BeginCopy(place)) continue;  // removed meanwhile
    if (writer_.Copy(place, scratch, copy.room, copy.entry, is_lost) == Outcome::kDone) {
      copies.push_back(std::move(copy));
      continue;
    }
    context_.index.EndCopy(place.key);
    if (!is_lost) {
      is_whole = false;
      break;
    }
    context_.index.Forget(place);
  }
  context_.calls.Pass("copies-written");
  for (const Copied& copy : copies) {
    // After the first of a segment this costs nothing.
    const bool is_safe = log_.Sync(*copy.room.segment) == Outcome::kDone;
    if (is_safe) {
      (void)context_.index.Move(copy.from, *copy.room.segment, copy.entry);
      collected.copied_bytes += copy.room.bytes;
    }
    context_.index.EndCopy(copy.from.key);
    is_whole = is_whole && is_safe;
    log_.Release(copy.room);
  }
  context_.calls.Pass("copies-synced");
  if (!is_whole) return false;
  context_.index.ReleaseRemovals(segment);
  return writer_.RecordRemovals() == Outcome::kDone;
}

}  // namespace vkv::store
