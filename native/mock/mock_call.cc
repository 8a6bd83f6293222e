#include "mock/mock_call.h"

#include <chrono>
#include <thread>

namespace vkv::mock {
namespace {

using Clock = std::chrono::steady_clock;

// A thread that sleeps wakes up this much late; shorter times, and the rest of longer ones, are spun.
constexpr std::chrono::microseconds kSleepGrain(100);

// Longer than another thread takes to come in between.
constexpr std::chrono::milliseconds kSlowWait(2);

void Wait(std::chrono::nanoseconds duration) {
  const Clock::time_point end = Clock::now() + duration;
  if (duration > kSleepGrain) std::this_thread::sleep_for(duration - kSleepGrain);
  while (Clock::now() < end) std::this_thread::yield();
}

}  // namespace

MockDevice::Call::Call(MockDevice& device, CallKind kind, const CallArguments& arguments)
    : device_(device), lock_(device.mutex_, std::defer_lock) {
  if (const uint64_t ns = device.script_.latency_ns(kind); ns != 0) {
    std::unique_lock<std::mutex> serialized(device.serialized_, std::defer_lock);
    if (IsSerialized(kind)) serialized.lock();
    Wait(std::chrono::nanoseconds(ns));
  }
  lock_.lock();
  entry_ = {device.journal_.NextStep(), kind, arguments, CUDA_SUCCESS};
  Admit();
}

MockDevice::Call::~Call() { device_.journal_.Add(entry_); }

void MockDevice::Call::Admit() {
  const CallKind kind = entry_.kind;
  const CUresult scripted = device_.script_.Next(kind);
  if (device_.lost_ != CUDA_SUCCESS && !SurvivesLoss(kind)) {
    Answer(device_.lost_);
  } else if (NeedsOf(kind) != Needs::kNothing && !device_.is_initialized_) {
    Break(rules::kInitialized, CUDA_ERROR_NOT_INITIALIZED);
  } else if (NeedsOf(kind) == Needs::kContext && device_.contexts_.Current() == nullptr) {
    Break(rules::kCurrentContext, CUDA_ERROR_INVALID_CONTEXT);
  } else if (NeedsOf(kind) == Needs::kContext && !device_.contexts_.is_retained()) {
    Break(rules::kLiveContext, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  } else if (scripted != CUDA_SUCCESS) {
    if (cuda::IsSticky(scripted)) device_.LoseLocked(scripted);
    Answer(scripted);
  }
}

CUresult MockDevice::Call::Complete(const std::vector<Span>& spans) {
  if (device_.options_.has_slow_waits) {
    lock_.unlock();
    Wait(kSlowWait);
    lock_.lock();
    if (device_.lost_ != CUDA_SUCCESS) return Answer(device_.lost_);
  }
  return device_.DoAll(device_.streams_.Take(spans)) ? result() : Answer(device_.lost_);
}

CUresult MockDevice::Call::Break(Rule rule, CUresult result) {
  device_.journal_.AddMisuse({entry_.step, entry_.kind, rule, entry_.arguments});
  return Answer(result);
}

CUresult MockDevice::Call::BreakDevice(Rule rule) {
  device_.LoseLocked(CUDA_ERROR_ILLEGAL_ADDRESS);
  return Break(rule, device_.lost_);
}

}  // namespace vkv::mock
