#include "mock/mock_device.h"

#include <utility>

#include "cuda/results.h"

namespace vkv::mock {

Status MockDevice::Open(const MockOptions& options, std::shared_ptr<MockDevice>& device) {
  std::unique_ptr<Backing> backing;
  VKV_RETURN_IF_ERROR(OpenBacking(options, backing));
  device.reset(new MockDevice(options, std::move(backing)));
  return Ok();
}

MockDevice::MockDevice(const MockOptions& options, std::unique_ptr<Backing> backing)
    : options_(options),
      backing_(std::move(backing)),
      journal_(options.journal_entries),
      pages_(*backing_, options.memory_bytes) {}

void MockDevice::FailCall(CallKind kind, uint64_t nth, CUresult result, uint64_t times) {
  const std::lock_guard lock(mutex_);
  script_.FailCall(kind, nth, result, times);
}

void MockDevice::ClearFailures() {
  const std::lock_guard lock(mutex_);
  script_.ClearFailures();
}

void MockDevice::SetLatency(CallKind kind, uint64_t ns) { script_.SetLatency(kind, ns); }

void MockDevice::Lose(CUresult result) {
  const std::lock_guard lock(mutex_);
  LoseLocked(result);
}

void MockDevice::LoseLocked(CUresult result) {
  if (lost_ == CUDA_SUCCESS) lost_ = result;
}

bool MockDevice::CompleteStream(uint64_t stream) {
  const std::lock_guard lock(mutex_);
  if (!streams_.IsLiveStream(stream)) return false;
  DoAll(streams_.Take(streams_.PendingOn(stream)));
  return true;
}

void MockDevice::CompleteAll() {
  const std::lock_guard lock(mutex_);
  DoAll(streams_.Take(streams_.PendingAnywhere()));
}

uint64_t MockDevice::PendingWork() {
  const std::lock_guard lock(mutex_);
  return streams_.pending();
}

std::vector<JournalEntry> MockDevice::JournalEntries() {
  const std::lock_guard lock(mutex_);
  return {journal_.entries().begin(), journal_.entries().end()};
}

void MockDevice::ClearJournal() {
  const std::lock_guard lock(mutex_);
  journal_.Clear();
}

std::vector<uint64_t> MockDevice::CallCounts() {
  const std::lock_guard lock(mutex_);
  return {journal_.counts().begin(), journal_.counts().end()};
}

void MockDevice::ResetCallCounts() {
  const std::lock_guard lock(mutex_);
  journal_.ResetCounts();
}

std::vector<Misuse> MockDevice::Misuses() {
  const std::lock_guard lock(mutex_);
  return journal_.misuses();
}

void MockDevice::ClearMisuses() {
  const std::lock_guard lock(mutex_);
  journal_.ClearMisuses();
}

LeakReport MockDevice::Leaks() {
  const std::lock_guard lock(mutex_);
  LeakReport report;
  report.live = {addresses_.reservations(), addresses_.mappings(), pages_.live_pages(),
                 streams_.streams(),        streams_.events(),     registrations_.count()};
  report.left_by_drivers = left_by_drivers_;
  report.modules = modules_.modules();
  report.graphs = graphs_.count();
  report.retained_contexts = contexts_.retains();
  report.pushed_contexts = contexts_.pushed();
  report.page_bytes = pages_.used_bytes();
  report.is_lost = lost_ != CUDA_SUCCESS;
  return report;
}

cuda::CudaTraits MockDevice::traits() const {
  return {.has_memory = backing_->has_memory(),
          .has_host_access = backing_->has_memory(),
          .unmaps_holes = options_.unmaps_holes};
}

uint64_t MockDevice::ResidentBytes(uint64_t created_bytes) {
  const std::lock_guard lock(mutex_);
  return backing_->ResidentBytes(created_bytes);
}

void MockDevice::NoteLeftovers(const cuda::Leftovers& leftovers) {
  const std::lock_guard lock(mutex_);
  left_by_drivers_.reservations += leftovers.reservations;
  left_by_drivers_.mappings += leftovers.mappings;
  left_by_drivers_.pages += leftovers.pages;
  left_by_drivers_.streams += leftovers.streams;
  left_by_drivers_.events += leftovers.events;
  left_by_drivers_.registrations += leftovers.registrations;
}

}  // namespace vkv::mock
