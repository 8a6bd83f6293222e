// MockDevice::Call: one call of an entry point, from its first line to its last.
//
// It takes the call's time, holds the device's lock, counts the call, makes the checks that come first (a lost device,
// no cuInit, no current context, a scripted failure), and writes the journal when it ends.
#ifndef VKV_MOCK_MOCK_CALL_H_
#define VKV_MOCK_MOCK_CALL_H_

#include <mutex>

#include "mock/mock_device.h"

namespace vkv::mock {

class MockDevice::Call {
 public:
  Call(MockDevice& device, CallKind kind, const CallArguments& arguments = {});
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // True when the call must do nothing but return result().
  bool is_refused() const { return entry_.result != CUDA_SUCCESS; }
  CUresult result() const { return entry_.result; }
  uint64_t step() const { return entry_.step; }
  // For the journal: the handle that the call returned.
  CallArguments& arguments() { return entry_.arguments; }

  // Ends the call with a result that is no misuse.
  CUresult Answer(CUresult result) { return entry_.result = result; }
  // Ends the call once what was pending is done. With slow waits other calls run before, also some that queue more.
  CUresult Complete(const std::vector<Span>& spans);
  // Ends the call because it broke a rule.
  CUresult Break(Rule rule, CUresult result = CUDA_ERROR_INVALID_VALUE);
  // Ends the call that ends a thing: it was live, or else the rule was broken.
  CUresult EndOf(bool was_live, Rule rule) { return was_live ? result() : Break(rule, CUDA_ERROR_INVALID_HANDLE); }
  // Ends the call because it broke a rule that costs a real device its life.
  CUresult BreakDevice(Rule rule);

 private:
  void Spend(uint64_t ns);
  void Admit();

  MockDevice& device_;
  std::unique_lock<std::mutex> lock_;
  JournalEntry entry_;
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_MOCK_CALL_H_
