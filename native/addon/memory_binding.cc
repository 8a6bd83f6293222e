// NativeMemory: plain device memory, seen from JavaScript. Converts and forwards; lib/device/device-memory.ts checks
// ranges.
#include <napi.h>

#include <memory>
#include <optional>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "device_memory.h"
#include "host/driver_host.h"

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

namespace {

constexpr size_t kStreamAt = 2;  // of both copies; undefined: none is waited for

std::optional<Stream> StreamOf(Arguments& given) {
  if (given.IsUndefined(kStreamAt)) return std::nullopt;
  return given.Address(kStreamAt);
}

}  // namespace

void NativeMemory::Define(Napi::Env env, Napi::Object exports) {
  exports.Set(
      "NativeMemory",
      DefineClass(env, "NativeMemory",
                  {InstanceMethod<&NativeMemory::Address>("address"), InstanceMethod<&NativeMemory::Write>("write"),
                   InstanceMethod<&NativeMemory::Read>("read"), InstanceMethod<&NativeMemory::Close>("close")}));
}

NativeMemory::NativeMemory(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeMemory>(info) {
  driver_ = NativeDriver::Of(info[0]);
  Arguments given(info, "NativeMemory");
  const auto bytes = static_cast<uint64_t>(given.Integer(1, 1, kLargestInteger));
  ThrowIfFailed(info.Env(), given.ok() ? Open(bytes) : given.status(), KindOf(driver_));
}

NativeMemory::~NativeMemory() { CloseMemory(); }

Status NativeMemory::Open(uint64_t bytes) {
  if (!driver_) return Fail(Code::kClosed, "driver");
  DriverScope scope(*driver_);
  VKV_RETURN_IF_ERROR(scope.status());
  VKV_RETURN_IF_ERROR(DeviceMemory::Open(*driver_, bytes, memory_));
  bytes_ = static_cast<int64_t>(bytes);
  return Ok();
}

void NativeMemory::CloseMemory() {
  if (!memory_) return;
  if (DriverHost* const host = driver_->AsHost(); host != nullptr) host->WaitForStreams();  // as a device's driver does
  DriverScope scope(*driver_);  // where it fails, nothing is left to give back
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
  Arguments given(info, "write");
  const std::span<uint8_t> bytes = given.Uint8s(1);
  const int64_t to = given.Integer(0, 0, bytes_ - static_cast<int64_t>(bytes.size()));
  const std::optional<Stream> stream = StreamOf(given);
  return Run(info.Env(), [&](DeviceMemory& memory) {
    return given.ok() ? memory.Write(static_cast<uint64_t>(to), bytes.data(), bytes.size(), stream) : given.status();
  });
}

Napi::Value NativeMemory::Read(const Napi::CallbackInfo& info) {
  Arguments given(info, "read");
  const std::span<uint8_t> bytes = given.Uint8s(0);
  const int64_t from = given.Integer(1, 0, bytes_ - static_cast<int64_t>(bytes.size()));
  const std::optional<Stream> stream = StreamOf(given);
  return Run(info.Env(), [&](DeviceMemory& memory) {
    return given.ok() ? memory.Read(bytes.data(), static_cast<uint64_t>(from), bytes.size(), stream) : given.status();
  });
}

Napi::Value NativeMemory::Close(const Napi::CallbackInfo& info) {
  CloseMemory();
  driver_.reset();
  return info.Env().Undefined();
}

void DefineMemory(Napi::Env env, Napi::Object exports) { NativeMemory::Define(env, exports); }

}  // namespace vkv::addon
