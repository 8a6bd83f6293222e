// NativeArena: a PinnedArena seen from JavaScript: the pages of a host driver, where a device's driver writes to them.
// Converts and forwards.
#ifndef VKV_ADDON_ARENA_BINDING_H_
#define VKV_ADDON_ARENA_BINDING_H_

#include <napi.h>

#include <memory>

#include "pinned_arena.h"

namespace vkv::addon {

class NativeArena : public Napi::ObjectWrap<NativeArena> {
 public:
  static constexpr napi_type_tag kTag = {0x8f3c1d60a2b94e57, 0x91d7e5240c6fb38a};
  static void Define(Napi::Env env, Napi::Object exports);
  // Null for any other value, and once it is closed.
  static std::shared_ptr<PinnedArena> Of(const Napi::Value& value);

  // (device's driver, host driver, image of the kernel that scatters rows); where the device refuses the kernel, and
  // where there is no memory for it to write, copies go one by one.
  explicit NativeArena(const Napi::CallbackInfo& info);

 private:
  Napi::Value Counts(const Napi::CallbackInfo& info);  // () => {registeredBytes, pageableBytes}
  Napi::Value Close(const Napi::CallbackInfo& info);

  std::shared_ptr<Driver> device_;
  std::shared_ptr<Driver> host_;
  std::shared_ptr<PinnedArena> arena_;  // null once closed
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_ARENA_BINDING_H_
