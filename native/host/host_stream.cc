#include "host/host_stream.h"

#include <cstring>
#include <ctime>

namespace vkv {
namespace {

// Looks before it sleeps: longer than the pause between two commands that JavaScript queues.
constexpr int kLooks = 2000;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

uint64_t HostStream::queued() {
  const std::lock_guard lock(mutex_);
  return queued_.load(std::memory_order_relaxed);
}

void HostStream::Add(const Record& record, const void* command, size_t command_bytes, const void* entries,
                     size_t entry_bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = queued_.load(std::memory_order_relaxed) + 1;
  if (is_stopping_.load(std::memory_order_relaxed)) {  // the environment ends: nothing runs any more
    queued_.store(ticket, std::memory_order_release);
    if (!is_started_ || has_ended_) done_.store(ticket, std::memory_order_release);
    return;
  }
  if (!is_started_ && !has_no_thread_) {
    is_started_ = thread_.Start<HostStream, &HostStream::Work, Standing::kPatient>(this, "vkv-stream").ok();
    has_no_thread_ = !is_started_;
  }
  if (has_no_thread_) {
    queued_.store(ticket, std::memory_order_release);
    RunOne(record, command, entries);
    return;
  }
  const size_t at = incoming_.size();
  constexpr uint32_t kHead = UnitsOf(sizeof(Record));
  incoming_.resize(at + kHead + record.command_units + record.entry_units);
  Unit* const to = incoming_.data() + at;
  std::memcpy(to, &record, sizeof record);
  if (command_bytes > 0) std::memcpy(to + kHead, command, command_bytes);
  if (entry_bytes > 0) std::memcpy(to + kHead + record.command_units, entries, entry_bytes);
  queued_.store(ticket, std::memory_order_release);
  if (is_sleeping_) wake_.notify_one();
}

void HostStream::Wait(uint64_t ticket) {
  if (IsDone(ticket)) return;
  std::unique_lock lock(mutex_);
  waiting_.fetch_add(1);
  progress_.wait(lock, [&] { return done_.load() >= ticket; });
  waiting_.fetch_sub(1);
}

void HostStream::Cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_.store(queued_.load(std::memory_order_relaxed), std::memory_order_release);
}

void HostStream::RequestStop() {
  const std::lock_guard lock(mutex_);
  is_stopping_.store(true, std::memory_order_release);
  wake_.notify_one();
}

void HostStream::Stop() {
  RequestStop();
  thread_.Join();
}

void HostStream::Work() {
  std::vector<Unit> units;
  while (Take(units)) {
    RunAll(units);
    units.clear();
  }
  const std::lock_guard lock(mutex_);
  incoming_.clear();
  has_ended_ = true;
  done_.store(queued_.load(std::memory_order_relaxed));
  progress_.notify_all();
}

bool HostStream::Take(std::vector<Unit>& units) {
  const uint64_t done = done_.load(std::memory_order_relaxed);
  for (int look = 0; look < kLooks && queued_.load(std::memory_order_relaxed) == done; ++look) Pause();
  std::unique_lock lock(mutex_);
  is_sleeping_ = true;
  wake_.wait(lock, [&] { return !incoming_.empty() || is_stopping_.load(std::memory_order_relaxed); });
  is_sleeping_ = false;
  units.swap(incoming_);
  return !is_stopping_.load(std::memory_order_relaxed);
}

void HostStream::RunAll(const std::vector<Unit>& units) {
  constexpr uint32_t kHead = UnitsOf(sizeof(Record));
  const Unit* at = units.data();
  for (const Unit* const end = at + units.size(); at != end;) {
    if (is_stopping_.load(std::memory_order_acquire)) return;
    Record record;
    std::memcpy(&record, at, sizeof record);
    const Unit* const command = at + kHead;
    RunOne(record, command, command + record.command_units);
    at = command + record.command_units + record.entry_units;
  }
}

void HostStream::RunOne(const Record& record, const void* command, const void* entries) {
  const uint64_t ticket = done_.load(std::memory_order_relaxed) + 1;
  if (record.kind == Kind::kDroppable) WaitWhileHeld(record, ticket);
  if (record.kind == Kind::kMark) SetDone(ticket);
  if (!IsDropped(record, ticket)) {
    const Status status = IsToFail(record) ? Status{Code::kDriverCallFailed, "command", fails_with_.load(), "", 0, 0}
                                           : record.run(*this, command, entries, record.count);
    if (!status.ok() && failure_.status.ok()) failure_ = {status, ticket - last_mark_ - 1};
  }
  if (record.kind != Kind::kMark) SetDone(ticket);
}

void HostStream::WaitWhileHeld(const Record& record, uint64_t ticket) {
  uint64_t nth = holds_at_.load(std::memory_order_acquire);
  while (nth == 1 && !IsDropped(record, ticket)) {
    constexpr timespec kLookAgain = {0, 1'000'000};
    nanosleep(&kLookAgain, nullptr);
    nth = holds_at_.load(std::memory_order_acquire);
  }
  while (nth > 1 && !holds_at_.compare_exchange_weak(nth, nth - 1)) {  // withdrawn meanwhile, or held anew
  }
}

bool HostStream::IsDropped(const Record& record, uint64_t ticket) const {
  if (record.kind != Kind::kDroppable) return false;
  return !failure_.status.ok() || ticket <= cancelled_.load(std::memory_order_acquire) ||
         is_stopping_.load(std::memory_order_acquire);
}

void HostStream::FailCommand(uint64_t nth, int error) {
  fails_with_.store(error);
  fails_in_.store(nth);
}

bool HostStream::IsToFail(const Record& record) {
  if (record.kind != Kind::kDroppable || fails_in_.load(std::memory_order_relaxed) == 0) return false;
  return fails_in_.fetch_sub(1) == 1;
}

HostStream::Failure HostStream::TakeFailure() {
  const Failure failure = failure_;
  failure_ = {};
  last_mark_ = done_.load(std::memory_order_relaxed);  // its own ticket
  return failure;
}

// A thread that waits counts itself before it looks, and this one looks for such threads after it counted on.
void HostStream::SetDone(uint64_t ticket) {
  done_.store(ticket);
  if (waiting_.load() == 0) return;
  if (has_no_thread_) return progress_.notify_all();  // the caller holds the lock
  const std::lock_guard lock(mutex_);
  progress_.notify_all();
}

}  // namespace vkv
