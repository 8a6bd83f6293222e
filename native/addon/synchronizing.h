// Synchronizing: a wait for a device's stream that JavaScript gets a promise of.
#ifndef VKV_ADDON_SYNCHRONIZING_H_
#define VKV_ADDON_SYNCHRONIZING_H_

#include <napi.h>

#include <memory>
#include <utility>

#include "addon/context.h"
#include "addon/driver_binding.h"
#include "driver.h"

namespace vkv::addon {

// Waits for a device's stream on a thread of Node's pool. Plain Node-API, because JavaScript may no longer run when it
// is done; the answer is dropped in that case.
class Synchronizing {
 public:
  Synchronizing(std::shared_ptr<Driver> driver, Stream stream) : driver_(std::move(driver)), stream_(stream) {}

  // Starts the work and returns its promise; nothing while the environment is being terminated.
  static Napi::Value Start(Napi::Env env, std::unique_ptr<Synchronizing> waiting) {
    napi_value promise = nullptr;
    napi_value name = nullptr;
    const bool is_queued =
        napi_create_promise(env, &waiting->deferred_, &promise) == napi_ok &&
        napi_create_string_utf8(env, "synchronize", NAPI_AUTO_LENGTH, &name) == napi_ok &&
        napi_create_async_work(env, nullptr, name, Execute, Complete, waiting.get(), &waiting->work_) == napi_ok &&
        napi_queue_async_work(env, waiting->work_) == napi_ok;
    if (!is_queued) return env.Undefined();
    (void)waiting.release();
    return {env, promise};
  }

 private:
  static void Execute(napi_env /*env*/, void* data) {
    auto& waiting = *static_cast<Synchronizing*>(data);
    DriverScope scope(*waiting.driver_);
    waiting.status_ = scope.status().ok() ? waiting.driver_->SynchronizeStream(waiting.stream_) : scope.status();
  }

  static void Complete(napi_env env, napi_status /*status*/, void* data) {
    const std::unique_ptr<Synchronizing> waiting(static_cast<Synchronizing*>(data));
    if (waiting->status_.ok())
      (void)napi_resolve_deferred(env, waiting->deferred_, Napi::Env(env).Undefined());
    else
      (void)napi_reject_deferred(env, waiting->deferred_, MakeError(env, waiting->status_, KindOf(waiting->driver_)));
    (void)napi_delete_async_work(env, waiting->work_);
  }

  const std::shared_ptr<Driver> driver_;
  const Stream stream_;
  napi_deferred deferred_ = nullptr;
  napi_async_work work_ = nullptr;
  Status status_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_SYNCHRONIZING_H_
