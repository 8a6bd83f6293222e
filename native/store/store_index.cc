#include "store/store_index.h"

#include <algorithm>

namespace vkv::store {
namespace {

// More than a store hands out until it makes its next file.
constexpr uint64_t kSequencesPerSegment = uint64_t{1} << 32;
constexpr uint64_t kMostSegments = uint64_t{1} << 31;

}  // namespace

uint64_t StoreIndex::TakeSequence() {
  std::lock_guard lock(mutex_);
  return next_sequence_++;
}

bool StoreIndex::Has(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(key);
  return found != states_.end() && found->second.segment != nullptr;
}

bool StoreIndex::Find(const Key& key, RecordPlace& place) {
  std::lock_guard lock(mutex_);
  return FindLocked(key, place);
}

bool StoreIndex::FindLocked(const Key& key, RecordPlace& place) {
  const auto found = states_.find(key);
  if (found == states_.end() || found->second.segment == nullptr) return false;
  Segment& segment = *found->second.segment;
  const Entry& entry = segment.entries[found->second.entry];
  place = {segment.shared_from_this(), key, entry.offset, entry.bytes, entry.sequence, entry.header_bytes,
           found->second.entry};
  return true;
}

void StoreIndex::SetLevel(const Key& key, uint8_t level) {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(key);
  if (found != states_.end() && found->second.segment != nullptr)
    found->second.segment->entries[found->second.entry].level = level;
}

uint8_t StoreIndex::LevelOf(const RecordPlace& place) {
  std::lock_guard lock(mutex_);
  return place.segment->entries[place.entry].level;
}

bool StoreIndex::BeginPut(const Key& key, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  KeyState& state = states_[key];
  if (state.segment != nullptr || (state.pending > 0 && state.newest_pending > state.removed)) return false;
  ++state.pending;
  state.newest_pending = sequence;
  return true;
}

void StoreIndex::AbandonPut(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(key);
  if (--found->second.pending == 0) found->second.newest_pending = 0;
  EraseIfIdleLocked(found);
}

void StoreIndex::Publish(Segment& segment, size_t at) {
  std::lock_guard lock(mutex_);
  Entry& entry = segment.entries[at];
  KeyState& state = states_[entry.key];
  if (--state.pending == 0) state.newest_pending = 0;
  if (entry.sequence < state.removed || state.segment != nullptr) return;
  // Where the sync of another put was refused meanwhile, so may this one's have been.
  if (segment.state == SegmentState::kFailed && entry.ticket > segment.synced_ticket) return;
  entry.state = EntryState::kLive;
  --state.copies;
  state.segment = &segment;
  state.entry = at;
}

uint64_t StoreIndex::Remove(std::span<const Key> keys) {
  std::lock_guard lock(mutex_);
  uint64_t removed = 0;
  for (const Key& key : keys) {
    const auto found = states_.find(key);
    if (found == states_.end()) continue;
    KeyState& state = found->second;
    if (state.segment != nullptr) {
      KillLocked(state);
      ++removed;
    } else if (state.pending > 0 && state.newest_pending > state.removed) {
      ++removed;
    }
    state.removed = next_sequence_++;
    state.removal_segment = nullptr;
    unrecorded_.push_back({key, state.removed});
  }
  return removed;
}

std::vector<Removal> StoreIndex::TakeUnrecorded() {
  std::lock_guard lock(mutex_);
  std::vector<Removal> taken;
  for (const Removal& removal : unrecorded_) {
    const auto found = states_.find(removal.key);
    if (found != states_.end() && found->second.removed == removal.sequence && NeedsRemoval(found->second))
      taken.push_back(removal);
  }
  unrecorded_.clear();
  return taken;
}

void StoreIndex::PutBack(std::span<const Removal> removals) {
  std::lock_guard lock(mutex_);
  unrecorded_.insert(unrecorded_.end(), removals.begin(), removals.end());
}

void StoreIndex::Recorded(Segment& segment, std::span<const Removal> removals, uint64_t ticket) {
  std::lock_guard lock(mutex_);
  if (segment.state == SegmentState::kFailed && ticket > segment.synced_ticket) {
    unrecorded_.insert(unrecorded_.end(), removals.begin(), removals.end());
    return;
  }
  for (const Removal& removal : removals) {
    segment.removals.push_back({removal, ticket});
    const auto found = states_.find(removal.key);
    if (found != states_.end() && found->second.removed == removal.sequence) found->second.removal_segment = &segment;
  }
}

bool StoreIndex::HasUnrecorded() {
  std::lock_guard lock(mutex_);
  return !unrecorded_.empty();
}

size_t StoreIndex::Add(Segment& segment, const RecordHeader& header, std::span<const uint8_t> header_bytes) {
  std::lock_guard lock(mutex_);
  AddToFooter(segment.footer, header.segment_offset, header_bytes);
  segment.entries.push_back({header.key, header.segment_offset, header.record_bytes(), header.sequence,
                             ++segment.ticket, static_cast<uint32_t>(header_bytes.size()), EntryState::kDead,
                             header.level});
  ++states_[header.key].copies;
  return segment.entries.size() - 1;
}

size_t StoreIndex::AddRemovals(Segment& segment, const RecordHeader& header, std::span<const uint8_t> header_bytes) {
  std::lock_guard lock(mutex_);
  AddToFooter(segment.footer, header.segment_offset, header_bytes);
  segment.entries.push_back({{},
                             header.segment_offset,
                             header.record_bytes(),
                             header.sequence,
                             ++segment.ticket,
                             static_cast<uint32_t>(header_bytes.size()),
                             EntryState::kRemovals});
  return segment.entries.size() - 1;
}

void StoreIndex::AddHole(Segment& segment, uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  segment.entries.push_back({{}, offset, bytes, 0, 0, 0, EntryState::kHole});
}

void StoreIndex::AddDoubtful(Segment& segment, const RecordHeader& header) {
  std::lock_guard lock(mutex_);
  const bool is_record = header.kind == RecordKind::kRecord;
  segment.entries.push_back({header.key, header.segment_offset, header.record_bytes(), header.sequence,
                             ++segment.ticket, 0, is_record ? EntryState::kDead : EntryState::kHole});
  if (is_record) ++states_[header.key].copies;
}

bool StoreIndex::BeginCopy(const RecordPlace& place) {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(place.key);
  if (found == states_.end() || found->second.segment != place.segment.get() || found->second.entry != place.entry)
    return false;
  ++found->second.copying;
  return true;
}

bool StoreIndex::BeginCopy(const Key& key, RecordPlace& place, uint64_t& sequence) {
  std::lock_guard lock(mutex_);
  if (!FindLocked(key, place)) return false;
  ++states_.at(key).copying;
  sequence = next_sequence_++;
  return true;
}

void StoreIndex::EndCopy(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(key);
  --found->second.copying;
  EraseIfIdleLocked(found);
}

bool StoreIndex::Move(const RecordPlace& from, Segment& to, size_t to_entry) {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(from.key);
  if (found == states_.end() || found->second.segment != from.segment.get() || found->second.entry != from.entry)
    return false;
  if (to.state == SegmentState::kFailed && to.entries[to_entry].ticket > to.synced_ticket) return false;
  from.segment->entries[from.entry].state = EntryState::kDead;
  to.entries[to_entry].level =
      from.segment->entries[from.entry].level;  // it may have changed since the copy was written
  to.entries[to_entry].state = EntryState::kLive;
  found->second.segment = &to;
  found->second.entry = to_entry;
  return true;
}

void StoreIndex::Forget(const RecordPlace& place) {
  std::lock_guard lock(mutex_);
  const auto found = states_.find(place.key);
  if (found == states_.end() || found->second.segment != place.segment.get() || found->second.entry != place.entry)
    return;
  KillLocked(found->second);
}

void StoreIndex::DropUnsynced(Segment& segment) {
  std::lock_guard lock(mutex_);
  segment.state = SegmentState::kFailed;
  for (Entry& entry : segment.entries) {
    if (entry.state == EntryState::kLive && entry.ticket > segment.synced_ticket) KillLocked(states_.at(entry.key));
  }
  for (const auto& [removal, ticket] : segment.removals) {
    const auto found = states_.find(removal.key);
    if (ticket <= segment.synced_ticket || found == states_.end()) continue;
    if (found->second.removal_segment != &segment || found->second.removed != removal.sequence) continue;
    found->second.removal_segment = nullptr;
    unrecorded_.push_back(removal);
  }
}

void StoreIndex::Rebuild() {
  std::lock_guard lock(mutex_);
  for (const auto& [number, segment] : segments_) {
    for (const auto& [removal, ticket] : segment->removals) {
      KeyState& state = states_[removal.key];
      next_sequence_ = std::max(next_sequence_, removal.sequence + 1);
      if (removal.sequence <= state.removed) continue;
      state.removed = removal.sequence;
      state.removal_segment = segment.get();
    }
  }
  for (const auto& [number, segment] : segments_) {
    for (size_t at = 0; at < segment->entries.size(); ++at) {
      Entry& entry = segment->entries[at];
      next_sequence_ = std::max(next_sequence_, entry.sequence + 1);
      if (entry.state != EntryState::kDead) continue;
      KeyState& state = states_[entry.key];
      ++state.copies;
      const bool is_older = state.segment != nullptr && state.segment->entries[state.entry].sequence >= entry.sequence;
      if (entry.sequence < state.removed || is_older) continue;
      if (state.segment != nullptr) KillLocked(state);
      entry.state = EntryState::kLive;
      --state.copies;
      state.segment = segment.get();
      state.entry = at;
    }
  }
  // What could not be read this time may be read the next, and must stay older than what comes now: the name of its
  // file is known, and each file begins with sequences of its own.
  if (!segments_.empty()) {
    const uint64_t number = std::min(segments_.rbegin()->first, kMostSegments);
    next_sequence_ = std::max(next_sequence_, (number + 1) * kSequencesPerSegment);
  }
  for (auto state = states_.begin(); state != states_.end();) {
    const auto at = state++;
    EraseIfIdleLocked(at);
  }
}

IndexTotals StoreIndex::Totals() {
  std::lock_guard lock(mutex_);
  IndexTotals totals;
  for (const auto& [number, segment] : segments_) {
    ++totals.segments;
    totals.file_bytes += segment->file_bytes;
    if (segment->state == SegmentState::kFailed) ++totals.failed_segments;
    for (const Entry& entry : segment->entries) {
      const bool is_live = entry.state == EntryState::kLive;
      totals.records += is_live ? 1 : 0;
      (is_live ? totals.live_bytes : totals.dead_bytes) += entry.bytes;
    }
    for (const auto& [removal, ticket] : segment->removals)
      totals.tombstones += IsNeededLocked(*segment, removal) ? 1 : 0;
  }
  totals.unrecorded = unrecorded_.size();
  return totals;
}

void StoreIndex::KillLocked(KeyState& state) {
  state.segment->entries[state.entry].state = EntryState::kDead;
  state.segment = nullptr;
  ++state.copies;
}

void StoreIndex::EraseIfIdleLocked(States::iterator state) {
  if (state->second.copies > 0 || state->second.pending > 0 || state->second.copying > 0) return;
  if (state->second.segment == nullptr)
    states_.erase(state);
  else
    state->second.removed = 0;
}

}  // namespace vkv::store
