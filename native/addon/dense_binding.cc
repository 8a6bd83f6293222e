#include "addon/dense_binding.h"

#include <algorithm>
#include <string>

#include "addon/context.h"

namespace vkv::addon {
namespace {

constexpr size_t kCommonArguments = 3;
constexpr size_t kProductArguments = 6;

// The first element of a typed array; null for anything else.
template <typename T>
T* ToData(const Napi::Value& value) {
  void* data = nullptr;
  if (value.IsTypedArray()) {
    napi_get_typedarray_info(value.Env(), value, nullptr, nullptr, &data, nullptr, nullptr);
  }
  return static_cast<T*>(data);
}

kernels::Dtype ToDtype(const Napi::Value& value) { return static_cast<kernels::Dtype>(ToInt32(value)); }

}  // namespace

void NativeDense::Define(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeDense",
              DefineClass(env, "NativeDense",
                          {InstanceMethod<&NativeDense::Target>("target"),
                           InstanceMethod<&NativeDense::Multiply>("multiply"),
                           InstanceMethod<&NativeDense::Normalize>("normalize"),
                           InstanceMethod<&NativeDense::Rotate>("rotate"), InstanceMethod<&NativeDense::Gate>("gate"),
                           InstanceMethod<&NativeDense::Gather>("gather")}));
}

NativeDense::NativeDense(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeDense>(info) {
  const std::string instructions = info[1].As<Napi::String>().Utf8Value();
  dense_ = std::make_unique<kernels::CpuDense>(ContextOf(info.Env()).workers, ToInt32(info[0]),
                                               kernels::ChooseDense(instructions.c_str()));
}

Napi::Value NativeDense::Target(const Napi::CallbackInfo& info) { return Napi::String::New(info.Env(), dense_->name()); }

Napi::Value NativeDense::Multiply(const Napi::CallbackInfo& info) {
  products_.clear();
  for (size_t at = kCommonArguments; at + kProductArguments <= info.Length(); at += kProductArguments) {
    products_.push_back({ToData<const void>(info[at]), ToData<const float>(info[at + 3]), ToData<float>(info[at + 4]),
                         ToInt64(info[at + 2]), ToDtype(info[at + 1]), info[at + 5].ToBoolean()});
  }
  dense_->Multiply(ToData<const float>(info[0]), ToInt64(info[1]), ToInt64(info[2]), products_);
  return info.Env().Undefined();
}

Napi::Value NativeDense::Normalize(const Napi::CallbackInfo& info) {
  dense_->Normalize({ToData<const float>(info[0]), ToData<const float>(info[2]), ToData<float>(info[5]), ToInt64(info[3]),
                     info[4].As<Napi::Number>().FloatValue()},
                    ToInt64(info[1]));
  return info.Env().Undefined();
}

Napi::Value NativeDense::Rotate(const Napi::CallbackInfo& info) {
  dense_->Rotate({ToData<float>(info[0]), ToData<const int32_t>(info[4]), ToData<const float>(info[5]), ToInt64(info[2]),
                  ToInt64(info[3])},
                 ToInt64(info[1]));
  return info.Env().Undefined();
}

Napi::Value NativeDense::Gate(const Napi::CallbackInfo& info) {
  dense_->Gate(ToData<const float>(info[0]), ToData<const float>(info[1]), ToData<float>(info[3]), ToInt64(info[2]));
  return info.Env().Undefined();
}

Napi::Value NativeDense::Gather(const Napi::CallbackInfo& info) {
  const std::span<int32_t> tokens = ToInt32Span(info[3]);
  const size_t rows = std::min<size_t>(ToUint64(info[4]), tokens.size());
  dense_->Gather(ToData<const void>(info[0]), ToDtype(info[1]), ToInt64(info[2]), tokens.first(rows),
                 ToData<float>(info[5]));
  return info.Env().Undefined();
}

}  // namespace vkv::addon
