// Loading the CUDA kernels' module on a driver, on the JavaScript thread or on one of libuv's. Converts and forwards;
// lib/kernels/load-kernels.ts chooses the image.
#include <napi.h>

#include <memory>
#include <string>
#include <vector>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "kernels/cuda/kernel_launcher.h"

namespace vkv::addon {

namespace {

struct Request {
  std::shared_ptr<Driver> driver;
  std::string module;
  std::span<const uint8_t> image;
};

// Of (driver, module, image).
Status ReadRequest(const Napi::CallbackInfo& info, const char* call, Request& request) {
  Arguments given(info, call);
  request.driver = NativeDriver::Of(info[0]);
  request.module = given.String(1);
  request.image = given.Uint8s(2);
  if (!request.driver) return Fail(Code::kClosed, "driver");
  if (request.driver->AsCuda() == nullptr || request.image.empty()) given.Refuse();
  return given.status();
}

Status Load(Driver& driver, const std::string& module, const void* image, std::string& log) {
  DriverScope scope(driver);
  VKV_RETURN_IF_ERROR(scope.status());
  return driver.AsCuda()->LoadModule(module, image, kernels::cuda::PackageKernels(), log);
}

// Keeps the driver and a copy of the image until the thread is done. Plain Node-API, because JavaScript may no longer
// run by then; the result is dropped in that case.
class Loading {
 public:
  explicit Loading(const Request& request)
      : driver_(request.driver), module_(request.module), image_(request.image.begin(), request.image.end()) {}

  // Starts the work and returns its promise; nothing while the environment is being terminated. Deletes itself
  // afterwards.
  static Napi::Value Start(Napi::Env env, std::unique_ptr<Loading> loading) {
    napi_value promise = nullptr;
    napi_value name = nullptr;
    const bool is_queued =
        napi_create_promise(env, &loading->deferred_, &promise) == napi_ok &&
        napi_create_string_utf8(env, "loadKernels", NAPI_AUTO_LENGTH, &name) == napi_ok &&
        napi_create_async_work(env, nullptr, name, Execute, Complete, loading.get(), &loading->work_) == napi_ok &&
        napi_queue_async_work(env, loading->work_) == napi_ok;
    if (!is_queued) return env.Undefined();
    (void)loading.release();
    return {env, promise};
  }

 private:
  static void Execute(napi_env /*env*/, void* data) {
    auto& loading = *static_cast<Loading*>(data);
    loading.status_ = Load(*loading.driver_, loading.module_, loading.image_.data(), loading.log_);
  }

  static void Complete(napi_env env, napi_status /*status*/, void* data) {
    const std::unique_ptr<Loading> loading(static_cast<Loading*>(data));
    if (loading->status_.ok()) {
      (void)napi_resolve_deferred(env, loading->deferred_, Napi::Env(env).Undefined());
    } else {
      const Napi::Value error = MakeError(env, loading->status_, KindOf(loading->driver_), loading->log_);
      (void)napi_reject_deferred(env, loading->deferred_, error);
    }
    (void)napi_delete_async_work(env, loading->work_);
  }

  const std::shared_ptr<Driver> driver_;
  const std::string module_;
  const std::vector<uint8_t> image_;
  napi_deferred deferred_ = nullptr;
  napi_async_work work_ = nullptr;
  Status status_;
  std::string log_;
};

Napi::Value LoadKernels(const Napi::CallbackInfo& info) {
  Request request;
  std::string log;
  Status status = ReadRequest(info, "loadKernels", request);
  if (status.ok()) status = Load(*request.driver, request.module, request.image.data(), log);
  ThrowIfFailed(info.Env(), status, KindOf(request.driver), log);
  return info.Env().Undefined();
}

Napi::Value LoadKernelsAsync(const Napi::CallbackInfo& info) {
  Request request;
  const Status status = ReadRequest(info, "loadKernelsAsync", request);
  if (ThrowIfFailed(info.Env(), status, KindOf(request.driver))) return info.Env().Undefined();
  return Loading::Start(info.Env(), std::make_unique<Loading>(request));
}

}  // namespace

void DefineModuleLoading(Napi::Env env, Napi::Object exports) {
  exports.Set("loadKernels", Napi::Function::New<LoadKernels>(env, "loadKernels"));
  exports.Set("loadKernelsAsync", Napi::Function::New<LoadKernelsAsync>(env, "loadKernelsAsync"));
}

}  // namespace vkv::addon
