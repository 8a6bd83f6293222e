#include "addon/module_binding.h"

#include <memory>
#include <string>
#include <vector>

#include "addon/context.h"
#include "addon/driver_binding.h"
#include "kernels/cuda/kernel_launcher.h"

namespace vkv::addon {
namespace {

Status Load(Driver& driver, const std::string& module, const void* image, std::string& log) {
  DriverScope scope(driver);
  VKV_RETURN_IF_ERROR(scope.status());
  return static_cast<cuda::DriverCuda&>(driver).LoadModule(module, image, kernels::cuda::PackageKernels(), log);
}

// Keeps the driver and a copy of the image until the thread is done.
class Loading : public Napi::AsyncWorker {
 public:
  Loading(Napi::Env env, std::shared_ptr<Driver> driver, std::string module, std::span<const uint8_t> image)
      : Napi::AsyncWorker(env),
        driver_(std::move(driver)),
        module_(std::move(module)),
        image_(image.begin(), image.end()),
        deferred_(Napi::Promise::Deferred::New(env)) {}

  Napi::Promise promise() const { return deferred_.Promise(); }

 private:
  void Execute() override { status_ = Load(*driver_, module_, image_.data(), log_); }
  void OnOK() override {
    const Napi::HandleScope scope(Env());
    if (status_.ok())
      deferred_.Resolve(Env().Undefined());
    else
      deferred_.Reject(MakeError(Env(), status_, KindOf(driver_), log_));
  }

  const std::shared_ptr<Driver> driver_;
  const std::string module_;
  const std::vector<uint8_t> image_;
  const Napi::Promise::Deferred deferred_;
  Status status_;
  std::string log_;
};

Napi::Value LoadKernels(const Napi::CallbackInfo& info) {
  const std::shared_ptr<Driver> driver = NativeDriver::Of(info[0]);
  std::string log;
  const Status status = driver ? Load(*driver, info[1].As<Napi::String>().Utf8Value(), ToBytes(info[2]).data(), log)
                               : Fail(Code::kClosed, "driver");
  ThrowIfFailed(info.Env(), status, KindOf(driver), log);
  return info.Env().Undefined();
}

Napi::Value LoadKernelsAsync(const Napi::CallbackInfo& info) {
  std::shared_ptr<Driver> driver = NativeDriver::Of(info[0]);
  if (!driver) {
    ThrowIfFailed(info.Env(), Fail(Code::kClosed, "driver"));
    return info.Env().Undefined();
  }
  auto* const loading =
      new Loading(info.Env(), std::move(driver), info[1].As<Napi::String>().Utf8Value(), ToBytes(info[2]));
  const Napi::Promise promise = loading->promise();
  loading->Queue();  // deletes itself
  return promise;
}

}  // namespace

void DefineModuleLoading(Napi::Env env, Napi::Object exports) {
  exports.Set("loadKernels", Napi::Function::New<LoadKernels>(env, "loadKernels"));
  exports.Set("loadKernelsAsync", Napi::Function::New<LoadKernelsAsync>(env, "loadKernelsAsync"));
}

}  // namespace vkv::addon
