#include "mock/contexts.h"

namespace vkv::mock {
namespace {

// The one primary context; not a place in memory.
CUcontext PrimaryContext() { return reinterpret_cast<CUcontext>(uint64_t{0xc0} << 32); }

}  // namespace

CUcontext Contexts::Retain() {
  ++retains_;
  return PrimaryContext();
}

bool Contexts::Release() {
  if (retains_ == 0) return false;
  --retains_;
  return true;
}

bool Contexts::Pop(CUcontext& context) {
  const auto stack = pushed_.find(std::this_thread::get_id());
  if (stack == pushed_.end()) return false;
  context = stack->second.back();
  stack->second.pop_back();
  if (stack->second.empty()) pushed_.erase(stack);
  return true;
}

CUcontext Contexts::Current() const {
  const auto stack = pushed_.find(std::this_thread::get_id());
  return stack == pushed_.end() ? nullptr : stack->second.back();
}

uint64_t Contexts::pushed() const {
  uint64_t count = 0;
  for (const auto& [thread, stack] : pushed_) count += stack.size();
  return count;
}

CUstreamCaptureMode Contexts::ExchangeCaptureMode(CUstreamCaptureMode mode) {
  const auto thread = std::this_thread::get_id();
  const auto found = capture_modes_.find(thread);
  const auto replaced = found == capture_modes_.end() ? CU_STREAM_CAPTURE_MODE_GLOBAL : found->second;
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
    capture_modes_.erase(thread);
  } else {
    capture_modes_[thread] = mode;
  }
  return replaced;
}

}  // namespace vkv::mock
