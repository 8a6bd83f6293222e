#include "mock/script.h"

namespace vkv::mock {

void Script::FailCall(CallKind kind, uint64_t nth, CUresult result, uint64_t times) {
  failures_[Index(kind)].push_back({calls_[Index(kind)] + nth, times, result});
}

void Script::ClearFailures() {
  for (std::vector<Failure>& failures : failures_) failures.clear();
}

CUresult Script::Next(CallKind kind) {
  const uint64_t call = ++calls_[Index(kind)];
  std::vector<Failure>& failures = failures_[Index(kind)];
  if (failures.empty()) return CUDA_SUCCESS;
  std::erase_if(failures, [call](const Failure& failure) {  // those that are used up
    return call > failure.first && call - failure.first >= failure.times;
  });
  for (const Failure& failure : failures) {
    if (call >= failure.first) return failure.result;
  }
  return CUDA_SUCCESS;
}

}  // namespace vkv::mock
