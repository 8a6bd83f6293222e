// Script: which calls of the simulated device fail, with which result, and how long calls take.
// Threads: the owner's lock guards all but latency_ns, which may be read at any time.
#ifndef VKV_MOCK_SCRIPT_H_
#define VKV_MOCK_SCRIPT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "mock/call_kind.h"
#include "mock/cuda_names.h"

namespace vkv::mock {

class Script {
 public:
  // Makes the nth call of this kind from now on (1: the next one), and the `times` - 1 calls after it, return `result`
  // and do nothing.
  void FailCall(CallKind kind, uint64_t nth, CUresult result, uint64_t times);
  // Forgets all failures that are still to come.
  void ClearFailures();
  void SetLatency(CallKind kind, uint64_t ns) { latency_ns_[Index(kind)] = ns; }
  uint64_t latency_ns(CallKind kind) const { return latency_ns_[Index(kind)]; }

  // Counts one call and returns its scripted result, CUDA_SUCCESS when it is to do its work.
  CUresult Next(CallKind kind);

 private:
  struct Failure {
    uint64_t first;  // call number, from 1
    uint64_t times;
    CUresult result;
  };

  static size_t Index(CallKind kind) { return static_cast<size_t>(kind); }

  std::array<std::atomic<uint64_t>, kCallKinds> latency_ns_ = {};
  std::array<uint64_t, kCallKinds> calls_ = {};
  std::array<std::vector<Failure>, kCallKinds> failures_;
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_SCRIPT_H_
