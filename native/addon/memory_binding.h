// NativeMemory: plain device memory, seen from JavaScript. Converts and forwards; lib/device/device-memory.ts checks
// ranges.
#ifndef VKV_ADDON_MEMORY_BINDING_H_
#define VKV_ADDON_MEMORY_BINDING_H_

#include <napi.h>

#include <memory>

#include "device_memory.h"

namespace vkv::addon {

class NativeMemory : public Napi::ObjectWrap<NativeMemory> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeMemory(const Napi::CallbackInfo& info);  // (driver, bytes)
  ~NativeMemory() override;

 private:
  Napi::Value Address(const Napi::CallbackInfo& info);
  Napi::Value Write(const Napi::CallbackInfo& info);  // (to byte, bytes, stream)
  Napi::Value Read(const Napi::CallbackInfo& info);   // (into bytes, from byte, stream)
  Napi::Value Close(const Napi::CallbackInfo& info);

  Status Open(uint64_t bytes);
  void CloseMemory();
  // Runs `call(memory)` with the device current; throws the error of a failure, kClosed included.
  template <typename Call>
  Napi::Value Run(Napi::Env env, Call call);

  std::shared_ptr<Driver> driver_;
  std::unique_ptr<DeviceMemory> memory_;  // null once closed
  int64_t bytes_ = 0;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_MEMORY_BINDING_H_
