#include "addon/memory_binding.h"

#include "addon/context.h"
#include "addon/driver_binding.h"

namespace vkv::addon {

void NativeMemory::Define(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeMemory",
              DefineClass(env, "NativeMemory",
                          {InstanceMethod<&NativeMemory::Address>("address"), InstanceMethod<&NativeMemory::Write>("write"),
                           InstanceMethod<&NativeMemory::Read>("read"), InstanceMethod<&NativeMemory::Close>("close")}));
}

NativeMemory::NativeMemory(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeMemory>(info) {
  driver_ = NativeDriver::Of(info[0]);
  ThrowIfFailed(info.Env(), Open(ToUint64(info[1])));
}

NativeMemory::~NativeMemory() { CloseMemory(); }

Status NativeMemory::Open(uint64_t bytes) {
  if (!driver_) return Fail(Code::kClosed, "driver");
  DriverScope scope(*driver_);
  VKV_RETURN_IF_ERROR(scope.status());
  return DeviceMemory::Open(*driver_, bytes, memory_);
}

void NativeMemory::CloseMemory() {
  if (!memory_) return;
  DriverScope scope(*driver_);  // where it fails there is nothing to give back any more
  memory_.reset();
}

template <typename Call>
Napi::Value NativeMemory::Run(Napi::Env env, Stream stream, Call call) {
  const auto run = [&]() -> Status {
    if (!memory_) return Fail(Code::kClosed, "device memory");
    DriverScope scope(*driver_);
    VKV_RETURN_IF_ERROR(scope.status());
    VKV_RETURN_IF_ERROR(driver_->SynchronizeStream(stream));
    return call();
  };
  ThrowIfFailed(env, run());
  return env.Undefined();
}

Napi::Value NativeMemory::Address(const Napi::CallbackInfo& info) {
  return FromUint64(info.Env(), memory_ ? memory_->address() : 0);
}

Napi::Value NativeMemory::Write(const Napi::CallbackInfo& info) {
  const std::span<uint8_t> bytes = ToBytes(info[1]);
  return Run(info.Env(), ToUint64(info[2]), [&] {
    const uint64_t to = memory_->address() + ToUint64(info[0]);
    return bytes.empty() ? Ok() : driver_->Write(to, bytes.data(), bytes.size());
  });
}

Napi::Value NativeMemory::Read(const Napi::CallbackInfo& info) {
  const std::span<uint8_t> bytes = ToBytes(info[0]);
  return Run(info.Env(), ToUint64(info[2]), [&] {
    const uint64_t from = memory_->address() + ToUint64(info[1]);
    return bytes.empty() ? Ok() : driver_->Read(bytes.data(), from, bytes.size());
  });
}

Napi::Value NativeMemory::Close(const Napi::CallbackInfo& info) {
  CloseMemory();
  driver_.reset();
  return info.Env().Undefined();
}

}  // namespace vkv::addon
