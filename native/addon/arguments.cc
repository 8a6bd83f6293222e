#include "addon/arguments.h"

#include <cmath>

namespace vkv::addon {
namespace {

size_t ElementBytes(napi_typedarray_type type) {
  switch (type) {
    case napi_int16_array:
    case napi_uint16_array: return 2;
    case napi_int32_array:
    case napi_uint32_array:
    case napi_float32_array: return 4;
    case napi_float64_array:
    case napi_bigint64_array:
    case napi_biguint64_array: return 8;
    default: return 1;
  }
}

}  // namespace

bool ReadArray(napi_env env, napi_value value, napi_typedarray_type wanted, Bytes& bytes) {
  bool is_array = false;
  if (value == nullptr || napi_is_typedarray(env, value, &is_array) != napi_ok || !is_array) return false;
  auto type = static_cast<napi_typedarray_type>(-1);  // stays so for a type that this Node-API does not know
  size_t length = 0;
  void* data = nullptr;
  if (napi_get_typedarray_info(env, value, &type, &length, &data, nullptr, nullptr) != napi_ok) return false;
  if (type != wanted) return false;
  bytes = data == nullptr ? Bytes() : Bytes{data, length * ElementBytes(type)};
  return true;
}

void Arguments::Refuse(int64_t what) {
  if (status_.ok()) status_ = Fail(Code::kInvalidArgument, call_, what);
}

napi_value Arguments::At(const char* name) {
  napi_value value = nullptr;
  if (object_ == nullptr || napi_get_named_property(env_, object_, name, &value) != napi_ok) value = nullptr;
  if (value == nullptr) Refuse();
  return value;
}

napi_valuetype Arguments::TypeOf(napi_value value) {
  napi_valuetype type = napi_undefined;
  if (value == nullptr || napi_typeof(env_, value, &type) != napi_ok) Refuse();
  return type;
}

int64_t Arguments::ToInteger(napi_value value, int64_t least, int64_t most) {
  const double number = ToDouble(value);
  // 2⁵³: above it a double may stand for several integers.
  const bool is_integer = std::trunc(number) == number && std::abs(number) <= 9007199254740992.0;
  const int64_t integer = is_integer ? static_cast<int64_t>(number) : 0;
  if (!is_integer || integer < least || integer > most) Refuse(integer);
  return ok() ? integer : 0;
}

uint64_t Arguments::ToAddress(napi_value value) {
  uint64_t address = 0;
  bool is_lossless = false;
  const bool is_read =
      TypeOf(value) == napi_bigint && napi_get_value_bigint_uint64(env_, value, &address, &is_lossless) == napi_ok;
  if (!is_read || !is_lossless) Refuse();
  return ok() ? address : 0;
}

double Arguments::ToDouble(napi_value value) {
  double number = 0;
  if (TypeOf(value) != napi_number || napi_get_value_double(env_, value, &number) != napi_ok) Refuse();
  return ok() ? number : 0;
}

bool Arguments::ToBoolean(napi_value value) {
  bool is_true = false;
  if (TypeOf(value) != napi_boolean || napi_get_value_bool(env_, value, &is_true) != napi_ok) Refuse();
  return ok() && is_true;
}

std::string Arguments::ToText(napi_value value) {
  size_t length = 0;
  if (TypeOf(value) != napi_string || napi_get_value_string_utf8(env_, value, nullptr, 0, &length) != napi_ok) Refuse();
  if (!ok()) return {};
  std::string text(length, '\0');
  if (napi_get_value_string_utf8(env_, value, text.data(), length + 1, &length) != napi_ok) Refuse();
  return text;
}

Bytes Arguments::ToArray(napi_value value, napi_typedarray_type type) {
  Bytes bytes;
  if (!ReadArray(env_, value, type, bytes)) Refuse();
  return ok() ? bytes : Bytes();
}

void* Arguments::ToBuffer(napi_value value, napi_typedarray_type type, uint64_t bytes) {
  if (TypeOf(value) == napi_bigint) return reinterpret_cast<void*>(ToAddress(value));
  const Bytes array = ToArray(value, type);
  if (ok() && array.bytes < bytes) Refuse(static_cast<int64_t>(array.bytes));
  return ok() ? array.data : nullptr;
}

}  // namespace vkv::addon
