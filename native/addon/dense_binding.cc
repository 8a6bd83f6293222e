#include "addon/dense_binding.h"

#include <algorithm>
#include <string>

#include "addon/context.h"
#include "addon/driver_binding.h"
#include "cuda/driver_cuda.h"
#include "kernels/cpu/dense_set_cpu.h"
#include "kernels/cuda/dense_set_cuda.h"

namespace vkv::addon {
namespace {

constexpr size_t kCommonArguments = 3;
constexpr size_t kProductArguments = 6;

// The first element of a typed array, or what a BigInt is the address of; null for anything else.
template <typename T>
T* ToData(const Napi::Value& value) {
  if (value.IsBigInt()) return reinterpret_cast<T*>(ToUint64(value));
  void* data = nullptr;
  if (value.IsTypedArray()) {
    napi_get_typedarray_info(value.Env(), value, nullptr, nullptr, &data, nullptr, nullptr);
  }
  return static_cast<T*>(data);
}

// `off`, `auto`, or a path.
kernels::CublasChoice ToChoice(const Napi::Object& options) {
  using Kind = kernels::CublasChoice::Kind;
  const std::string given = options.Get("cublas").As<Napi::String>().Utf8Value();
  return {given == "off"    ? Kind::kNone
          : given == "auto" ? Kind::kUsual
                            : Kind::kPath,
          given, ToUint64(options.Get("workspaceBytes"))};
}

kernels::Dtype ToDtype(const Napi::Value& value) { return static_cast<kernels::Dtype>(ToInt32(value)); }

}  // namespace

void NativeDense::Define(Napi::Env env, Napi::Object exports) {
  exports.Set(
      "NativeDense",
      DefineClass(env, "NativeDense",
                  {InstanceMethod<&NativeDense::Target>("target"), InstanceMethod<&NativeDense::Multiply>("multiply"),
                   InstanceMethod<&NativeDense::Normalize>("normalize"), InstanceMethod<&NativeDense::Rotate>("rotate"),
                   InstanceMethod<&NativeDense::Gate>("gate"), InstanceMethod<&NativeDense::Gather>("gather"),
                   InstanceMethod<&NativeDense::Close>("close")}));
}

NativeDense::NativeDense(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeDense>(info) {
  if (info[0].IsObject()) driver_ = NativeDriver::Of(info[0]);
  ThrowIfFailed(info.Env(), OpenSet(info.Env(), info[1].As<Napi::Object>()), KindOf(driver_));
}

NativeDense::~NativeDense() { CloseSet(); }

Status NativeDense::OpenSet(Napi::Env env, const Napi::Object& options) {
  if (!driver_) {
    const std::string instructions = options.Get("instructions").As<Napi::String>().Utf8Value();
    dense_ = std::make_unique<kernels::CpuDense>(ContextOf(env).workers, ToInt32(options.Get("threads")),
                                                 kernels::ChooseDense(instructions.c_str()));
    return Ok();
  }
  DriverScope scope(*driver_);
  VKV_RETURN_IF_ERROR(scope.status());
  return kernels::CudaDense::Open(static_cast<cuda::DriverCuda&>(*driver_),
                                  options.Get("module").As<Napi::String>().Utf8Value(), ToUint64(options.Get("stream")),
                                  ToChoice(options), dense_);
}

void NativeDense::CloseSet() {
  if (!driver_ || !dense_) return dense_.reset();
  DriverScope scope(*driver_);  // where it fails there is nothing to give back any more
  dense_.reset();
}

template <typename Call>
Napi::Value NativeDense::Run(Napi::Env env, Call call) {
  if (!dense_) {
    ThrowIfFailed(env, Fail(Code::kClosed, "dense kernels"));
  } else if (!driver_) {
    ThrowIfFailed(env, call(*dense_));
  } else {
    DriverScope scope(*driver_);
    ThrowIfFailed(env, scope.status().ok() ? call(*dense_) : scope.status(), KindOf(driver_));
  }
  return env.Undefined();
}

Napi::Value NativeDense::Target(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), dense_ ? dense_->name() : "");
}

Napi::Value NativeDense::Multiply(const Napi::CallbackInfo& info) {
  products_.clear();
  for (size_t at = kCommonArguments; at + kProductArguments <= info.Length(); at += kProductArguments) {
    products_.push_back({ToData<const void>(info[at]), ToData<const float>(info[at + 3]), ToData<float>(info[at + 4]),
                         ToInt64(info[at + 2]), ToDtype(info[at + 1]), info[at + 5].ToBoolean()});
  }
  const kernels::ProductInput input = {ToData<const float>(info[0]), ToInt64(info[1]), ToInt64(info[2])};
  return Run(info.Env(), [&](kernels::DenseSet& dense) { return dense.Multiply(input, products_); });
}

Napi::Value NativeDense::Normalize(const Napi::CallbackInfo& info) {
  const kernels::Normalization command = {ToData<const float>(info[0]), ToData<const float>(info[2]),
                                          ToData<float>(info[5]), ToInt64(info[3]),
                                          info[4].As<Napi::Number>().FloatValue()};
  return Run(info.Env(), [&](kernels::DenseSet& dense) { return dense.Normalize(command, ToInt64(info[1])); });
}

Napi::Value NativeDense::Rotate(const Napi::CallbackInfo& info) {
  const kernels::Rotation command = {ToData<float>(info[0]),
                                     ToData<const int32_t>(info[4]),
                                     ToData<const float>(info[5]),
                                     ToInt64(info[2]),
                                     ToInt64(info[3]),
                                     info[4].IsBigInt()};
  return Run(info.Env(), [&](kernels::DenseSet& dense) { return dense.Rotate(command, ToInt64(info[1])); });
}

Napi::Value NativeDense::Gate(const Napi::CallbackInfo& info) {
  const kernels::Gating command = {ToData<const float>(info[0]), ToData<const float>(info[1]), ToData<float>(info[3]),
                                   ToInt64(info[2])};
  return Run(info.Env(), [&](kernels::DenseSet& dense) { return dense.Gate(command); });
}

Napi::Value NativeDense::Gather(const Napi::CallbackInfo& info) {
  const bool are_on_device = info[3].IsBigInt();
  const size_t wanted = ToUint64(info[4]);
  const size_t rows = are_on_device ? wanted : std::min(wanted, ToInt32Span(info[3]).size());
  const std::span<const int32_t> tokens(ToData<const int32_t>(info[3]), rows);
  const kernels::Gathering command = {ToData<const void>(info[0]), ToData<float>(info[5]), ToInt64(info[2]),
                                      ToDtype(info[1]), are_on_device};
  return Run(info.Env(), [&](kernels::DenseSet& dense) { return dense.Gather(command, tokens); });
}

Napi::Value NativeDense::Close(const Napi::CallbackInfo& info) {
  CloseSet();
  driver_.reset();
  return info.Env().Undefined();
}

}  // namespace vkv::addon
