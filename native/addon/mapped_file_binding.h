// NativeMappedFile: a file mapped read-only, seen from JavaScript. Converts and forwards. The memory stays until
// JavaScript forgets the object: queued work that reads it keeps the object.
#ifndef VKV_ADDON_MAPPED_FILE_BINDING_H_
#define VKV_ADDON_MAPPED_FILE_BINDING_H_

#include <napi.h>

#include <memory>

#include "host/mapped_file.h"

namespace vkv::addon {

class NativeMappedFile : public Napi::ObjectWrap<NativeMappedFile> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeMappedFile(const Napi::CallbackInfo& info);  // (descriptor, bytes)

 private:
  Napi::Value Address(const Napi::CallbackInfo& info);
  Napi::Value IsIntact(const Napi::CallbackInfo& info);
  Napi::Value Read(const Napi::CallbackInfo& info);  // (into bytes, from byte)

  std::unique_ptr<host::MappedFile> file_;  // null if it could not be mapped
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_MAPPED_FILE_BINDING_H_
