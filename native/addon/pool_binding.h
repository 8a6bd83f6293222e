// NativePool: a PagePool seen from JavaScript. Converts and forwards; lib/device/page-pool.ts validates.
#ifndef VKV_ADDON_POOL_BINDING_H_
#define VKV_ADDON_POOL_BINDING_H_

#include <napi.h>

#include <memory>
#include <string>

#include "page_pool.h"

namespace vkv::addon {

class NativePool : public Napi::ObjectWrap<NativePool> {
 public:
  static constexpr napi_type_tag kTag = {0x2b7e151628aed2a6, 0xabf7158809cf4f3c};
  static void Define(Napi::Env env, Napi::Object exports);
  // Null when the environment is being terminated.
  static std::shared_ptr<PagePool> Of(const Napi::Value& value);

  explicit NativePool(const Napi::CallbackInfo& info);  // (driver, pageBytes, budgetBytes)

 private:
  Napi::Value Count(const Napi::CallbackInfo& info);
  Napi::Value Available(const Napi::CallbackInfo& info);
  Napi::Value SetBudget(const Napi::CallbackInfo& info);
  Napi::Value Trim(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);

  std::shared_ptr<PagePool> pool_;
  std::string driver_kind_;  // for errors
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_POOL_BINDING_H_
