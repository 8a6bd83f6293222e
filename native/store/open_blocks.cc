#include "store/open_blocks.h"

#include <errno.h>

namespace vkv::store {
namespace {

constexpr size_t kMostFiles = 256;
// Of headers as files have them; in memory they take about as much.
constexpr uint64_t kMostHeaderBytesKept = 16 << 20;

}  // namespace

std::shared_ptr<const OpenBlock> OpenBlocks::Find(const std::string& name, uint64_t& drops) {
  std::lock_guard lock(mutex_);
  drops = drops_;
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->block;
}

void OpenBlocks::Keep(const std::string& name, std::shared_ptr<const OpenBlock> block, uint64_t drops) {
  std::lock_guard lock(mutex_);
  if (drops != drops_ || by_name_.contains(name)) return;  // or two reads at once
  header_bytes_ += block->header.header_bytes();
  kept_.push_front({name, std::move(block)});
  by_name_[name] = kept_.begin();
  while (kept_.size() > 1 && (kept_.size() > kMostFiles || header_bytes_ > kMostHeaderBytesKept)) DropLast();
}

void OpenBlocks::Drop(const std::string& name) {
  std::lock_guard lock(mutex_);
  ++drops_;
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  kept_.splice(kept_.end(), kept_, found->second);
  DropLast();
}

void OpenBlocks::Clear() {
  std::lock_guard lock(mutex_);
  while (!kept_.empty()) DropLast();
}

bool OpenBlocks::Relieve(int error) {
  if ((error != EMFILE && error != ENFILE) || count() == 0) return false;
  Clear();
  return true;
}

size_t OpenBlocks::count() {
  std::lock_guard lock(mutex_);
  return kept_.size();
}

void OpenBlocks::DropLast() {
  header_bytes_ -= kept_.back().block->header.header_bytes();
  by_name_.erase(kept_.back().name);
  kept_.pop_back();
}

}  // namespace vkv::store
