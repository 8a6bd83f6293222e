#include "mock/journal.h"

namespace vkv::mock {
namespace {

// Whether this call ended the life of what the arguments name: its mapping, its reservation or the page
// itself.
bool Ended(const JournalEntry& entry, const CallArguments& arguments) {
  if (entry.result != CUDA_SUCCESS) return false;
  switch (entry.kind) {
    case CallKind::cuMemUnmap:
    case CallKind::cuMemAddressFree: {
      const uint64_t begin = entry.arguments.address;
      return arguments.address >= begin && arguments.address - begin < entry.arguments.bytes;
    }
    case CallKind::cuMemRelease:
    case CallKind::cuStreamDestroy:
    case CallKind::cuEventDestroy: {
      const uint64_t handle = entry.arguments.handle;
      return handle != 0 && (handle == arguments.handle || handle == arguments.stream);
    }
    default: return false;
  }
}

// A faulty loop must not fill the memory with reports.
constexpr size_t kMostMisuses = 1000;

}  // namespace

void Journal::Add(const JournalEntry& entry) {
  ++counts_[static_cast<size_t>(entry.kind)];
  if (capacity_ == 0) return;
  if (entries_.size() == capacity_) entries_.pop_front();
  entries_.push_back(entry);
}

void Journal::AddMisuse(Misuse misuse) {
  if (misuses_.size() == kMostMisuses) return;
  misuse.earlier_step = FindEnd(misuse.arguments);
  misuses_.push_back(misuse);
}

uint64_t Journal::FindEnd(const CallArguments& arguments) const {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (Ended(*entry, arguments)) return entry->step;
  }
  return 0;
}

}  // namespace vkv::mock
