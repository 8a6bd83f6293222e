#include "addon/mapped_file_binding.h"

#include <cstring>
#include <limits>

#include "addon/arguments.h"
#include "addon/context.h"

namespace vkv::addon {

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

}  // namespace vkv::addon
