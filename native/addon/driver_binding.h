// NativeDriver: a Driver seen from JavaScript, call by call. Converts and forwards; lib/device/driver.ts validates.
// The raw calls serve the contract suite and gpu-check; the cache never goes through them.
#ifndef VKV_ADDON_DRIVER_BINDING_H_
#define VKV_ADDON_DRIVER_BINDING_H_

#include <napi.h>

#include <memory>
#include <string>

#include "addon/arguments.h"
#include "addon/context.h"
#include "driver.h"
#include "host/host_stream.h"

namespace vkv::addon {

class NativeDriver : public Napi::ObjectWrap<NativeDriver> {
 public:
  static constexpr napi_type_tag kTag = {0x8f2d1c5a7b3e4960, 0x91d0c4e2a86f5b17};
  static void Define(Napi::Env env, Napi::Object exports);
  // The JavaScript object of an opened driver.
  static Napi::Value Wrap(Napi::Env env, std::shared_ptr<Driver> driver);
  // The driver behind an object made by Wrap; null when it was closed, or the environment is being terminated.
  static std::shared_ptr<Driver> Of(const Napi::Value& value);

  explicit NativeDriver(const Napi::CallbackInfo& info);

 private:
  Napi::Value Info(const Napi::CallbackInfo& info);
  Napi::Value QueryMemory(const Napi::CallbackInfo& info);
  Napi::Value IsLost(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);
  Napi::Value Reserve(const Napi::CallbackInfo& info);
  Napi::Value FreeReservation(const Napi::CallbackInfo& info);
  Napi::Value CreatePage(const Napi::CallbackInfo& info);
  Napi::Value ReleasePage(const Napi::CallbackInfo& info);
  Napi::Value Map(const Napi::CallbackInfo& info);
  Napi::Value SetAccess(const Napi::CallbackInfo& info);
  Napi::Value Unmap(const Napi::CallbackInfo& info);
  Napi::Value Write(const Napi::CallbackInfo& info);
  Napi::Value Read(const Napi::CallbackInfo& info);
  Napi::Value RegisterHost(const Napi::CallbackInfo& info);    // (address, bytes)
  Napi::Value UnregisterHost(const Napi::CallbackInfo& info);  // (address)
  Napi::Value Download(const Napi::CallbackInfo& info);        // (to address of the process, from, bytes, stream)
  Napi::Value Upload(const Napi::CallbackInfo& info);          // (to, from address of the process, bytes, stream)
  Napi::Value Copy(const Napi::CallbackInfo& info);
  Napi::Value Fill(const Napi::CallbackInfo& info);
  Napi::Value CreateStream(const Napi::CallbackInfo& info);
  Napi::Value DestroyStream(const Napi::CallbackInfo& info);
  Napi::Value SynchronizeStream(const Napi::CallbackInfo& info);
  Napi::Value SynchronizeAsync(const Napi::CallbackInfo& info);  // (stream), not host: a promise
  // Host: what is queued on a stream so far is told by its id when it is done; whether that keeps the loop alive.
  Napi::Value MarkStream(const Napi::CallbackInfo& info);    // (stream, id, is awaited)
  Napi::Value EndAwait(const Napi::CallbackInfo& info);      // () a mark that is awaited was told
  Napi::Value CancelStream(const Napi::CallbackInfo& info);  // (stream)
  Napi::Value RecordEvent(const Napi::CallbackInfo& info);
  Napi::Value QueryEvent(const Napi::CallbackInfo& info);
  Napi::Value SynchronizeEvent(const Napi::CallbackInfo& info);
  Napi::Value WaitEvent(const Napi::CallbackInfo& info);
  Napi::Value DestroyEvent(const Napi::CallbackInfo& info);
  Napi::Value FailCall(const Napi::CallbackInfo& info);

  // Runs `call(driver)` with the device current; throws the error of a failure, kClosed included. Undefined on success.
  template <typename Call>
  Napi::Value Run(Napi::Env env, Call call);

  std::shared_ptr<Driver> driver_;
};

// The host driver's stream that `options` name; null: the default stream. Refuses others.
std::shared_ptr<HostStream> HostStreamOf(const std::shared_ptr<Driver>& driver, Arguments& options);

// The kind of a driver, for errors; empty without one.
inline std::string KindOf(const std::shared_ptr<Driver>& driver) { return driver ? driver->info().kind : ""; }

template <typename Call>
Napi::Value NativeDriver::Run(Napi::Env env, Call call) {
  if (!driver_) {
    ThrowIfFailed(env, Fail(Code::kClosed, "driver"));
    return env.Undefined();
  }
  DriverScope scope(*driver_);
  ThrowIfFailed(env, scope.status().ok() ? call(*driver_) : scope.status(), KindOf(driver_));
  return env.Undefined();
}

}  // namespace vkv::addon

#endif  // VKV_ADDON_DRIVER_BINDING_H_
