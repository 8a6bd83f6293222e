// Runs kernels on MockDevice: checks the ranges that they use, then runs the simulated one. QueueWork stands for a
// kernel of which only the ranges are known, for tests of what must not happen while it runs.
#include <utility>

#include "mock/mock_device.h"

namespace vkv::mock {

bool MockDevice::QueueWork(uint64_t stream, std::vector<Touch> touches) {
  const std::lock_guard lock(mutex_);
  if (!streams_.IsLiveStream(stream)) return false;
  JournalEntry entry;
  entry.step = journal_.NextStep();
  entry.kind = CallKind::cuLaunchKernel;
  entry.arguments.stream = stream;
  entry.result = lost_;
  if (lost_ == CUDA_SUCCESS) {
    streams_.Enqueue(stream, {.kind = WorkKind::kKernel, .touches = std::move(touches), .step = entry.step});
    if (options_.streams == StreamMode::kImmediate) DoAll(streams_.Take(streams_.PendingOn(stream)));
  }
  journal_.Add(entry);
  return true;
}

bool MockDevice::CheckTouches(const Work& work, const std::vector<Touch>& touches) {
  for (const Touch& touch : touches) {
    if (addresses_.CanAccess(touch.address, touch.bytes, touch.is_write)) continue;
    if (work.kind == WorkKind::kKernel && registrations_.IsOnDevice(touch.address, touch.bytes)) continue;
    NoteMisuse(work, rules::kKernelAccess, touch);
    LoseLocked(CUDA_ERROR_ILLEGAL_ADDRESS);
    return false;
  }
  return true;
}

void MockDevice::NoteMisuse(const Work& work, Rule rule, const Touch& touch) {
  CallArguments arguments;
  arguments.address = touch.address;
  arguments.bytes = touch.bytes;
  journal_.AddMisuse(
      {work.step, work.is_replayed ? CallKind::cuGraphLaunch : CallKind::cuLaunchKernel, rule, arguments});
}

bool MockDevice::DoKernel(const Work& work) {
  // Lists in memory now hold the numbers that the kernel reads.
  const bool has_list = work.kernel != nullptr && work.kernel->ListOf(work.parameter.data()).bytes != 0;
  const std::vector<Touch> read = has_list ? TouchesOf(work, /*behind_stream=*/nullptr) : std::vector<Touch>();
  const std::vector<Touch>& touches = has_list ? read : work.touches;
  if (!CheckTouches(work, touches)) return false;
  for (const Touch& written : touches) {
    if (!written.is_write) continue;
    const std::vector<Extent> extents = addresses_.ExtentsOf(written.address, written.bytes);
    for (const Touch& other : touches) {
      if (!AreAliases(extents, addresses_.ExtentsOf(other.address, other.bytes))) continue;
      NoteMisuse(work, rules::kAlias, written);  // wrong results on a real device, no failure
      return true;
    }
  }
  if (work.kernel != nullptr && backing_->has_memory()) work.kernel->Run(work.parameter.data());
  return true;
}

}  // namespace vkv::mock
