// The index's segments: which are dead or sparse, and which of their removals are still needed.
#include <algorithm>

#include "store/store_index.h"

namespace vkv::store {

void StoreIndex::AddSegment(std::shared_ptr<Segment> segment) {
  std::lock_guard lock(mutex_);
  const uint64_t number = segment->number;
  segments_[number] = std::move(segment);
}

std::vector<std::shared_ptr<Segment>> StoreIndex::Segments() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Segment>> all;
  for (const auto& [number, segment] : segments_) all.push_back(segment);
  return all;
}

std::shared_ptr<Segment> StoreIndex::SegmentFrom(uint64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = segments_.lower_bound(number);
  return found == segments_.end() ? nullptr : found->second;
}

uint64_t StoreIndex::FileBytes() {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [number, segment] : segments_) bytes += segment->file_bytes;
  return bytes;
}

std::vector<std::shared_ptr<Segment>> StoreIndex::TakeDead() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Segment>> dead;
  for (const auto& [number, segment] : segments_) {
    if (segment->state == SegmentState::kOpen || segment->state == SegmentState::kDropping || segment->writers > 0 ||
        segment->is_sealing || segment->has_unread)
      continue;
    if (std::any_of(segment->entries.begin(), segment->entries.end(),
                    [](const Entry& entry) { return entry.state == EntryState::kLive; }))
      continue;
    const auto copies = CopiesIn(*segment);
    const bool is_needed = std::any_of(
        segment->removals.begin(), segment->removals.end(),
        [&](const WrittenRemoval& written) { return IsNeededElsewhereLocked(*segment, written.removal, copies); });
    if (is_needed) continue;
    segment->state_before_drop = segment->state;
    segment->state = SegmentState::kDropping;
    dead.push_back(segment);
  }
  return dead;
}

std::shared_ptr<Segment> StoreIndex::Sparsest(std::span<const uint64_t> passed, double& life) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Segment> sparsest;
  for (const auto& [number, segment] : segments_) {
    const bool is_over = segment->state == SegmentState::kSealed || segment->state == SegmentState::kFailed;
    if (!is_over || segment->has_unread || segment->writers > 0 ||
        std::find(passed.begin(), passed.end(), number) != passed.end())
      continue;
    if (segment->tail == kBlockBytes) continue;
    const double share =
        static_cast<double>(LiveBytesLocked(*segment)) / static_cast<double>(segment->tail - kBlockBytes);
    if (sparsest != nullptr && share >= life) continue;
    sparsest = segment;
    life = share;
  }
  return sparsest;
}

std::vector<RecordPlace> StoreIndex::LiveOf(Segment& segment) {
  std::lock_guard lock(mutex_);
  std::vector<RecordPlace> places;
  for (size_t at = 0; at < segment.entries.size(); ++at) {
    const Entry& entry = segment.entries[at];
    if (entry.state != EntryState::kLive) continue;
    places.push_back(
        {segment.shared_from_this(), entry.key, entry.offset, entry.bytes, entry.sequence, entry.header_bytes, at});
  }
  return places;
}

void StoreIndex::ReleaseRemovals(Segment& segment) {
  std::lock_guard lock(mutex_);
  const auto copies = CopiesIn(segment);
  for (const auto& [removal, ticket] : segment.removals) {
    if (!IsNeededElsewhereLocked(segment, removal, copies)) continue;
    states_.at(removal.key).removal_segment = nullptr;
    unrecorded_.push_back(removal);
  }
}

void StoreIndex::Dropped(Segment& segment, bool is_certain) {
  std::lock_guard lock(mutex_);
  for (const Entry& entry : segment.entries) {
    if (entry.state != EntryState::kDead || !is_certain) continue;
    const auto found = states_.find(entry.key);
    --found->second.copies;
    EraseIfIdleLocked(found);
  }
  for (const auto& [removal, ticket] : segment.removals) {
    const auto found = states_.find(removal.key);
    if (found != states_.end() && found->second.removal_segment == &segment) found->second.removal_segment = nullptr;
  }
  segments_.erase(segment.number);
}

bool StoreIndex::IsNeededLocked(const Segment& segment, const Removal& removal) {
  const auto found = states_.find(removal.key);
  return found != states_.end() && found->second.removal_segment == &segment &&
         found->second.removed == removal.sequence && NeedsRemoval(found->second);
}

std::unordered_map<Key, uint32_t, KeyHash> StoreIndex::CopiesIn(const Segment& segment) {
  std::unordered_map<Key, uint32_t, KeyHash> copies;
  if (segment.removals.empty()) return copies;
  for (const Entry& entry : segment.entries)
    if (entry.state == EntryState::kDead) ++copies[entry.key];
  return copies;
}

bool StoreIndex::IsNeededElsewhereLocked(const Segment& segment, const Removal& removal,
                                         const std::unordered_map<Key, uint32_t, KeyHash>& copies) {
  if (!IsNeededLocked(segment, removal)) return false;
  const KeyState& state = states_.at(removal.key);
  const auto here = copies.find(removal.key);
  return state.pending > 0 || state.copying > 0 || state.copies > (here == copies.end() ? 0 : here->second);
}

uint64_t StoreIndex::LiveBytesLocked(const Segment& segment) {
  uint64_t bytes = 0;
  for (const Entry& entry : segment.entries)
    if (entry.state == EntryState::kLive) bytes += entry.bytes;
  uint64_t needed = 0;
  const auto copies = CopiesIn(segment);
  for (const auto& [removal, ticket] : segment.removals)
    needed += IsNeededElsewhereLocked(segment, removal, copies) ? sizeof(Removal) : 0;
  return bytes + ToBlocks(needed);
}

}  // namespace vkv::store
