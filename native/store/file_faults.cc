#include "store/file_faults.h"

#include <signal.h>
#include <unistd.h>

namespace vkv::store {
namespace {

constexpr const char* kNames[kFileCallKinds] = {"open",   "read",       "write", "sync",       "syncFolder", "rename",
                                                "unlink", "makeFolder", "lock",  "readFolder", "size"};

[[noreturn]] void KillProcess() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace

const char* FileCallName(size_t kind) { return kind < kFileCallKinds ? kNames[kind] : nullptr; }

bool FileCallFromName(std::string_view name, FileCall& kind) {
  for (size_t k = 0; k < kFileCallKinds; ++k) {
    if (name != kNames[k]) continue;
    kind = static_cast<FileCall>(k);
    return true;
  }
  return false;
}

void FileFaults::Add(const FileFault& fault) {
  std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

void FileFaults::KillAt(std::string point, uint64_t nth) {
  std::lock_guard lock(mutex_);
  kill_point_ = std::move(point);
  kill_nth_ = nth;
}

void FileFaults::Clear() {
  std::lock_guard lock(mutex_);
  faults_.clear();
  kill_point_.clear();
  ++clearings_;
  cleared_.notify_all();
}

uint64_t FileFaults::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

std::array<uint64_t, kFileCallKinds> FileFaults::Counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

std::unordered_map<std::string, uint64_t> FileFaults::Points() const {
  std::lock_guard lock(mutex_);
  return points_;
}

void FileFaults::StartJournal() {
  std::lock_guard lock(mutex_);
  has_journal_ = true;
  journal_.clear();
}

uint64_t FileFaults::JournalLength() const {
  std::lock_guard lock(mutex_);
  return journal_.size();
}

std::vector<FileChange> FileFaults::TakeJournal() {
  std::lock_guard lock(mutex_);
  has_journal_ = false;
  return std::move(journal_);
}

FileFaults::Verdict FileFaults::Before(FileCall kind) {
  std::unique_lock lock(mutex_);
  ++counts_[static_cast<size_t>(kind)];
  Verdict verdict;
  bool is_held = false;
  for (FileFault& fault : faults_) {
    if ((!fault.any_kind && fault.kind != kind) || fault.times == 0) continue;
    if (fault.nth > 1) {
      --fault.nth;
      continue;
    }
    --fault.times;
    if (fault.kills) KillProcess();
    if (fault.error != 0) verdict.error = fault.error;
    if (fault.most_bytes >= 0) verdict.most_bytes = fault.most_bytes;
    if (fault.flipped_bit >= 0) verdict.flipped_bit = fault.flipped_bit;
    is_held = is_held || fault.holds;
  }
  if (is_held) {
    ++held_;
    cleared_.wait(lock, [this, before = clearings_] { return clearings_ != before; });
    --held_;
  }
  return verdict;
}

void FileFaults::Pass(const char* point) {
  std::lock_guard lock(mutex_);
  ++points_[point];
  if (kill_point_ == point && --kill_nth_ == 0) KillProcess();
}

void FileFaults::Opened(int file, const std::string& path, bool is_created) {
  std::lock_guard lock(mutex_);
  paths_[file] = path;
  if (has_journal_ && is_created) journal_.push_back({FileCall::kOpen, path, {}, 0, {}});
}

std::string FileFaults::PathOf(int file) const {
  std::lock_guard lock(mutex_);
  const auto found = paths_.find(file);
  return found == paths_.end() ? std::string() : found->second;
}

void FileFaults::Note(FileChange change) {
  std::lock_guard lock(mutex_);
  if (has_journal_) journal_.push_back(std::move(change));
}

}  // namespace vkv::store
