// NativeMappedFile: a file mapped read-only, seen from JavaScript. Converts and forwards. The memory stays until
// JavaScript forgets the object: queued work that reads it keeps the object.
#include <napi.h>

#include <cstring>
#include <limits>
#include <memory>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
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

void NativeMappedFile::Define(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeMappedFile", DefineClass(env, "NativeMappedFile",
                                              {InstanceMethod<&NativeMappedFile::Address>("address"),
                                               InstanceMethod<&NativeMappedFile::IsIntact>("isIntact"),
                                               InstanceMethod<&NativeMappedFile::Read>("read")}));
}

NativeMappedFile::NativeMappedFile(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeMappedFile>(info) {
  Arguments given(info, "NativeMappedFile");
  const auto descriptor = static_cast<int>(given.Integer(0, 0, std::numeric_limits<int>::max()));
  const auto bytes = static_cast<uint64_t>(given.Integer(1, 1, kLargestInteger));
  ThrowIfFailed(info.Env(), given.ok() ? host::MappedFile::Open(descriptor, bytes, file_) : given.status(), "host");
}

Napi::Value NativeMappedFile::Address(const Napi::CallbackInfo& info) {
  return FromUint64(info.Env(), file_ ? reinterpret_cast<uint64_t>(file_->data()) : 0);
}

Napi::Value NativeMappedFile::IsIntact(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), file_ != nullptr && file_->IsIntact());
}

Napi::Value NativeMappedFile::Read(const Napi::CallbackInfo& info) {
  Arguments given(info, "read");
  const std::span<uint8_t> into = given.Uint8s(0);
  const int64_t bytes = file_ ? static_cast<int64_t>(file_->bytes()) : 0;
  const int64_t from = given.Integer(1, 0, bytes - static_cast<int64_t>(into.size()));
  if (!ThrowIfFailed(info.Env(), given.status()) && !into.empty())
    std::memcpy(into.data(), file_->data() + from, into.size());
  return info.Env().Undefined();
}

void DefineMappedFile(Napi::Env env, Napi::Object exports) { NativeMappedFile::Define(env, exports); }

}  // namespace vkv::addon
