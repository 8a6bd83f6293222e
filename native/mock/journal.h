// Journal: the latest calls of the simulated device with their results, how often each kind was
// called, and every misuse (the first thousand). Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_JOURNAL_H_
#define VKV_MOCK_JOURNAL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "mock/call_kind.h"
#include "mock/cuda_names.h"
#include "mock/rules.h"

namespace vkv::mock {

// The arguments of a call; those that do not apply to it are 0.
struct CallArguments {
  uint64_t address = 0;  // a copy's destination
  uint64_t from = 0;     // a copy's source
  uint64_t bytes = 0;
  uint64_t handle = 0;  // page, stream, event or context
  uint64_t stream = 0;  // that work was queued on
};

struct JournalEntry {
  uint64_t step = 0;  // 1 for the device's first call
  CallKind kind = CallKind::cuInit;
  CallArguments arguments;
  CUresult result = CUDA_SUCCESS;
};

struct Misuse {
  uint64_t step = 0;
  CallKind kind = CallKind::cuInit;
  Rule rule = nullptr;
  CallArguments arguments;
  uint64_t earlier_step = 0;  // the call that last unmapped, freed or released the same thing; 0: none in the journal
};

class Journal {
 public:
  explicit Journal(uint64_t capacity) : capacity_(capacity) {}

  uint64_t NextStep() { return ++steps_; }
  void Add(const JournalEntry& entry);
  void AddMisuse(Misuse misuse);

  const std::deque<JournalEntry>& entries() const { return entries_; }
  const std::vector<Misuse>& misuses() const { return misuses_; }
  const std::array<uint64_t, kCallKinds>& counts() const { return counts_; }
  void Clear() { entries_.clear(); }
  void ClearMisuses() { misuses_.clear(); }
  void ResetCounts() { counts_ = {}; }

 private:
  uint64_t FindEnd(const CallArguments& arguments) const;

  const uint64_t capacity_;
  uint64_t steps_ = 0;
  std::deque<JournalEntry> entries_;  // the latest last
  std::array<uint64_t, kCallKinds> counts_ = {};
  std::vector<Misuse> misuses_;
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_JOURNAL_H_
