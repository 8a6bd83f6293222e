#include "store/header_cache.h"

namespace vkv::store {
namespace {

// Of headers as files have them; in memory they take about as much.
constexpr uint64_t kMostBytes = 16 << 20;

}  // namespace

std::shared_ptr<const RecordHeader> HeaderCache::Find(const RecordPlace& place) {
  std::lock_guard lock(mutex_);
  const auto found = by_name_.find({place.segment->number, place.offset});
  if (found == by_name_.end() || found->second->header->sequence != place.sequence) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->header;
}

void HeaderCache::Keep(const RecordPlace& place, std::shared_ptr<const RecordHeader> header) {
  std::lock_guard lock(mutex_);
  const Name name = {place.segment->number, place.offset};
  if (by_name_.contains(name)) return;  // two reads at once
  bytes_ += place.header_bytes;
  kept_.push_front({name, place.header_bytes, std::move(header)});
  by_name_[name] = kept_.begin();
  while (bytes_ > kMostBytes && kept_.size() > 1) {
    bytes_ -= kept_.back().bytes;
    by_name_.erase(kept_.back().name);
    kept_.pop_back();
  }
}

}  // namespace vkv::store
