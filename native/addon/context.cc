#include "addon/context.h"

namespace vkv::addon {
namespace {

template <typename Array>
Array ToTypedArray(const Napi::Value& value, napi_typedarray_type type) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != type) return Array();
  return value.As<Array>();
}

}  // namespace

Napi::Value MakeError(Napi::Env env, const Status& status, const std::string& driver) {
  if (status.ok()) return env.Undefined();
  EnvContext& context = ContextOf(env);
  if (context.make_error.IsEmpty()) return Napi::Error::New(env, status.call).Value();
  return context.make_error.Value().Call(
      {Napi::Number::New(env, static_cast<double>(status.code)), Napi::String::New(env, status.call),
       Napi::Number::New(env, status.result), Napi::String::New(env, status.result_name),
       Napi::Number::New(env, static_cast<double>(status.what)),
       Napi::Number::New(env, static_cast<double>(status.how_many)), Napi::String::New(env, driver),
       Napi::Number::New(env, static_cast<double>(status.others))});
}

bool ThrowIfFailed(Napi::Env env, const Status& status, const std::string& driver) {
  if (status.ok()) return false;
  const Napi::Value error = MakeError(env, status, driver);
  if (!env.IsExceptionPending()) napi_throw(env, error);
  return true;
}

uint64_t ToUint64(const Napi::Value& value) {
  if (!value.IsBigInt()) return static_cast<uint64_t>(value.As<Napi::Number>().Int64Value());
  bool is_lossless = true;
  return value.As<Napi::BigInt>().Uint64Value(&is_lossless);
}

int64_t ToInt64(const Napi::Value& value) { return value.As<Napi::Number>().Int64Value(); }
int32_t ToInt32(const Napi::Value& value) { return value.As<Napi::Number>().Int32Value(); }

std::span<int32_t> ToInt32Span(const Napi::Value& value) {
  Napi::Int32Array array = ToTypedArray<Napi::Int32Array>(value, napi_int32_array);
  return array.IsEmpty() ? std::span<int32_t>() : std::span(array.Data(), array.ElementLength());
}

std::span<double> ToFloat64Span(const Napi::Value& value) {
  Napi::Float64Array array = ToTypedArray<Napi::Float64Array>(value, napi_float64_array);
  return array.IsEmpty() ? std::span<double>() : std::span(array.Data(), array.ElementLength());
}

std::span<uint8_t> ToBytes(const Napi::Value& value) {
  Napi::Uint8Array array = ToTypedArray<Napi::Uint8Array>(value, napi_uint8_array);
  return array.IsEmpty() ? std::span<uint8_t>() : std::span(array.Data(), array.ElementLength());
}

Napi::BigInt FromUint64(Napi::Env env, uint64_t value) { return Napi::BigInt::New(env, value); }

}  // namespace vkv::addon
