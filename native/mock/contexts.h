// Contexts: the simulated device's primary context, and which context is current on each thread.
//
// The current contexts are kept by thread id, in here and not in thread-local storage, so that each simulated
// device has its own and nothing outlives it. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_CONTEXTS_H_
#define VKV_MOCK_CONTEXTS_H_

#include <cstdint>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mock/cuda_names.h"

namespace vkv::mock {

class Contexts {
 public:
  CUcontext Retain();
  // False when it is not retained.
  bool Release();
  bool is_retained() const { return retains_ != 0; }
  uint64_t retains() const { return retains_; }

  // On the calling thread.
  void Push(CUcontext context) { pushed_[std::this_thread::get_id()].push_back(context); }
  // False when there is nothing to pop.
  bool Pop(CUcontext& context);
  // nullptr when there is none.
  CUcontext Current() const;
  // How many are pushed and not yet popped, on all threads.
  uint64_t pushed() const;

  // A thread's capture mode has no effect here; it is only kept, to be exchanged.
  CUstreamCaptureMode ExchangeCaptureMode(CUstreamCaptureMode mode);

 private:
  uint64_t retains_ = 0;
  std::unordered_map<std::thread::id, std::vector<CUcontext>> pushed_;
  std::unordered_map<std::thread::id, CUstreamCaptureMode> capture_modes_;  // absent: global
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_CONTEXTS_H_
