#include "store/collector.h"

#include <errno.h>

#include <algorithm>

namespace vkv::store {
namespace {

// A file with less life is copied whenever garbage is collected.
constexpr double kSparseLife = 0.5;
// A file with more is never: seven bytes would be copied to gain one.
constexpr double kMostLife = 0.875;

}  // namespace

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
  while (const std::shared_ptr<Segment> segment = Next(passed)) {
    passed.push_back(segment->number);
    if (!Empty(*segment, scratch, collected)) break;
    DropDead(collected);
  }
  return collected;
}

std::shared_ptr<Segment> Collector::Next(std::span<const uint64_t> passed) {
  double life = 0;
  std::shared_ptr<Segment> sparsest = context_.index.Sparsest(passed, life);
  if (sparsest == nullptr) return nullptr;
  const bool is_worth_it = life < kSparseLife || (life <= kMostLife && !log_.HasRoomForSegment());
  return is_worth_it ? sparsest : nullptr;
}

bool Collector::Empty(Segment& segment, AlignedBuffer& scratch, Collected& collected) {
  std::vector<RecordCopy> copies;
  bool is_whole = CopyPayloads(segment, scratch, copies);
  context_.calls.Pass("copy-payloads-written");
  // Copies lie in the order of their segments, so that each is synced once.
  const Segment* synced = nullptr;
  Outcome outcome = Outcome::kDone;
  std::erase_if(copies, [&](RecordCopy& copy) {
    if (copy.room.segment.get() != synced) outcome = log_.SyncPayloads(*copy.room.segment);
    synced = copy.room.segment.get();
    const bool is_safe = outcome == Outcome::kDone;
    if (is_safe && writer_.CopyHeader(copy) == Outcome::kDone) return false;
    End(copy, is_safe);
    is_whole = false;
    return true;
  });
  context_.calls.Pass("copies-written");
  for (const RecordCopy& copy : copies) {
    // After the first of a segment this costs nothing.
    const bool is_safe = log_.Sync(*copy.room.segment) == Outcome::kDone;
    if (is_safe) {
      (void)context_.index.Move(copy.from, *copy.room.segment, copy.entry);
      collected.copied_bytes += copy.room.bytes;
    }
    is_whole = is_whole && is_safe;
    End(copy, true);
  }
  context_.calls.Pass("copies-synced");
  if (!is_whole) return false;
  context_.index.ReleaseRemovals(segment);
  return writer_.RecordRemovals() == Outcome::kDone;
}

bool Collector::CopyPayloads(Segment& segment, AlignedBuffer& scratch, std::vector<RecordCopy>& copies) {
  for (const RecordPlace& place : context_.index.LiveOf(segment)) {
    if (is_stopping_) return false;
    RecordCopy copy = {place, {}, {}, 0};
    bool is_lost = false;
    if (!context_.index.BeginCopy(place)) continue;  // removed meanwhile
    if (writer_.CopyPayload(copy, scratch, is_lost) == Outcome::kDone) {
      copies.push_back(std::move(copy));
      continue;
    }
    context_.index.EndCopy(place.key);
    if (!is_lost) return false;
    context_.index.Forget(place);
  }
  return true;
}

void Collector::End(const RecordCopy& copy, bool has_header) {
  if (!has_header) log_.GiveBack(copy.room);
  context_.index.EndCopy(copy.from.key);
  log_.Release(copy.room);
}

}  // namespace vkv::store
