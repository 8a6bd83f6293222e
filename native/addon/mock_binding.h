// NativeMockDevice: a simulated CUDA device seen from JavaScript: its script, its streams and its records.
// Converts and forwards; lib/device/mock-device.ts validates, and calls nothing after close().
#ifndef VKV_ADDON_MOCK_BINDING_H_
#define VKV_ADDON_MOCK_BINDING_H_

#include <napi.h>

#include <memory>

#include "mock/mock_device.h"

namespace vkv::addon {

class NativeMockDevice : public Napi::ObjectWrap<NativeMockDevice> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeMockDevice(const Napi::CallbackInfo& info);  // (options), all of them given

 private:
  Napi::Value OpenDriver(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);
  Napi::Value FailCall(const Napi::CallbackInfo& info);
  Napi::Value ClearFailures(const Napi::CallbackInfo& info);
  Napi::Value SetLatencyNs(const Napi::CallbackInfo& info);
  Napi::Value LoseDevice(const Napi::CallbackInfo& info);
  Napi::Value QueueWork(const Napi::CallbackInfo& info);
  Napi::Value CompleteStream(const Napi::CallbackInfo& info);
  Napi::Value CompleteAll(const Napi::CallbackInfo& info);
  Napi::Value PendingWork(const Napi::CallbackInfo& info);
  Napi::Value Journal(const Napi::CallbackInfo& info);
  Napi::Value ClearJournal(const Napi::CallbackInfo& info);
  Napi::Value CallCounts(const Napi::CallbackInfo& info);
  Napi::Value ResetCallCounts(const Napi::CallbackInfo& info);
  Napi::Value Leaks(const Napi::CallbackInfo& info);
  Napi::Value Misuses(const Napi::CallbackInfo& info);
  Napi::Value ClearMisuses(const Napi::CallbackInfo& info);

  // The kind of call that an argument names; one that does not exist is refused above.
  static mock::CallKind ToKind(const Napi::Value& value);

  std::shared_ptr<mock::MockDevice> device_;  // shared with the drivers that are open over it
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_MOCK_BINDING_H_
