#include "addon/memory_binding.h"

#include "addon/context.h"
#include "addon/driver_binding.h"

namespace vkv::addon {

void NativeMemory::Define(Napi::Env env, Napi::Object exports) {
  exports.Set(
      "NativeMemory",
      DefineClass(env, "NativeMemory",
                  {InstanceMethod<&NativeMemory::Address>("address"), InstanceMethod<&NativeMemory::Write>("write"),
                   InstanceMethod<&NativeMemory::Read>("read"), InstanceMethod<&NativeMemory::Close>("close")}));
}

NativeMemory::NativeMemory(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeMemory>(info) {
  driver_ = NativeDriver::Of(info[0]);
  ThrowIfFailed(info.Env(), Open(ToUint64(info[1])), KindOf(driver_));
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
Napi::Value NativeMemory::Run(Napi::Env env, Call call) {
  if (!memory_) {
    ThrowIfFailed(env, Fail(Code::kClosed, "device memory"));
    return env.Undefined();
  }
  DriverScope scope(*driver_);
  ThrowIfFailed(env, scope.status().ok() ? call(*memory_) : scope.status(), KindOf(driver_));
  return env.Undefined();
}

Napi::Value NativeMemory::Address(const Napi::CallbackInfo& info) {
  return FromUint64(info.Env(), memory_ ? memory_->address() : 0);
}

Napi::Value NativeMemory::Write(const Napi::CallbackInfo& info) {
  const std::span<uint8_t> bytes = ToBytes(info[1]);
  return Run(info.Env(), [&](DeviceMemory& memory) {
    return memory.Write(ToUint64(info[0]), bytes.data(), bytes.size(), ToUint64(info[2]));
  });
}

Napi::Value NativeMemory::Read(const Napi::CallbackInfo& info) {
  const std::span<uint8_t> bytes = ToBytes(info[0]);
  return Run(info.Env(), [&](DeviceMemory& memory) {
    return memory.Read(bytes.data(), ToUint64(info[1]), bytes.size(), ToUint64(info[2]));
  });
}

Napi::Value NativeMemory::Close(const Napi::CallbackInfo& info) {
  CloseMemory();
  driver_.reset();
  return info.Env().Undefined();
}

}  // namespace vkv::addon
