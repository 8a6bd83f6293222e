// The doing of kernels on MockDevice: the ranges they use are checked, then a simulated one does its work. QueueWork
// stands for a kernel of which only the ranges are known, for tests of what must not happen meanwhile.
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
    if (options_.streams == StreamMode::kImmediate) DoAll(streams_.TakeStream(stream));
  }
  journal_.Add(entry);
  return true;
}

bool MockDevice::DoKernel(const Work& work) {
  const auto misuse = [&](Rule rule, const Touch& touch) {
    CallArguments arguments;
    arguments.address = touch.address;
    arguments.bytes = touch.bytes;
    journal_.AddMisuse({work.step, CallKind::cuLaunchKernel, rule, arguments});
  };
  for (const Touch& touch : work.touches) {
    if (addresses_.CanAccess(touch.address, touch.bytes, touch.is_write)) continue;
    misuse(rules::kKernelAccess, touch);
    LoseLocked(CUDA_ERROR_ILLEGAL_ADDRESS);
    return false;
  }
  for (const Touch& written : work.touches) {
    if (!written.is_write) continue;
    const std::vector<Extent> extents = addresses_.ExtentsOf(written.address, written.bytes);
    for (const Touch& other : work.touches) {
      if (!AreAliases(extents, addresses_.ExtentsOf(other.address, other.bytes))) continue;
      misuse(rules::kAlias, written);  // wrong results on a real device, no failure
      return true;
    }
  }
  if (work.kernel != nullptr && backing_->has_memory()) work.kernel->Run(work.parameter.data());
  return true;
}

}  // namespace vkv::mock
