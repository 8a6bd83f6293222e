// Arguments: reads the arguments of a call from JavaScript, or the members of an object argument. It checks every
// status of Node-API, every type and range, and neither throws nor aborts. TypeScript has validated before; these
// checks are for values that would crash the process.
//
// The first value of a wrong type or range makes `status()` a failure, and it and all later values read as zero or
// empty. So a call reads all its arguments first, and does its work only when `status()` is ok. In a worker that is
// being terminated all values read as failures. For the environment's own thread.
#ifndef VKV_ADDON_ARGUMENTS_H_
#define VKV_ADDON_ARGUMENTS_H_

#include <napi.h>

#include <span>
#include <string>

#include "status.h"

namespace vkv::addon {

// The largest integer that a Number holds exactly.
constexpr int64_t kLargestInteger = (int64_t{1} << 53) - 1;

// Memory of a typed array, valid until code of the caller's runs.
struct Bytes {
  void* data = nullptr;
  size_t bytes = 0;
};

// False when `value` is no typed array of `type`. A detached array, or one whose buffer has shrunk below it, has no
// bytes.
bool ReadArray(napi_env env, napi_value value, napi_typedarray_type type, Bytes& bytes);

class Arguments {
 public:
  // `call`: a static string, for errors.
  Arguments(const Napi::CallbackInfo& info, const char* call) : env_(info.Env()), info_(&info), call_(call) {}
  // The members of an object that is an argument of `info`.
  Arguments(const Napi::CallbackInfo& info, size_t object, const char* call)
      : env_(info.Env()), info_(&info), object_(info[object]), call_(call) {}

  [[nodiscard]] const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  // By position; of an object's members by name.
  template <typename Key>
  int64_t Integer(Key key, int64_t least, int64_t most) {
    return ToInteger(At(key), least, most);
  }
  template <typename Key>
  uint64_t Address(Key key) {  // a BigInt of 64 bits
    return ToAddress(At(key));
  }
  template <typename Key>
  double Double(Key key) {
    return ToDouble(At(key));
  }
  template <typename Key>
  bool Boolean(Key key) {
    return ToBoolean(At(key));
  }
  template <typename Key>
  std::string String(Key key) {
    return ToText(At(key));
  }
#define VKV_NUMBERS(name, Number, array_type)   \
  template <typename Key>                       \
  std::span<Number> name(Key key) {             \
    return ToSpan<Number>(At(key), array_type); \
  }
  VKV_NUMBERS(Int32s, int32_t, napi_int32_array)
  VKV_NUMBERS(Doubles, double, napi_float64_array)
  VKV_NUMBERS(Uint64s, uint64_t, napi_biguint64_array)
  VKV_NUMBERS(Uint32s, uint32_t, napi_uint32_array)
  VKV_NUMBERS(Uint8s, uint8_t, napi_uint8_array)
#undef VKV_NUMBERS
  // The first `count` entries of an Int32Array, each of which is an `Entry`.
  template <typename Entry, typename Key>
  std::span<const Entry> Entries(Key key, size_t count_at) {
    static_assert(sizeof(Entry) % sizeof(int32_t) == 0);
    const std::span<int32_t> numbers = Int32s(key);
    const auto most = static_cast<int64_t>(numbers.size_bytes() / sizeof(Entry));
    const auto count = static_cast<size_t>(Integer(count_at, 0, most));
    return {reinterpret_cast<const Entry*>(numbers.data()), count};
  }
  // An address, or the first element of a typed array of `type` with at least `bytes` bytes.
  template <typename T, typename Key>
  T* Buffer(Key key, napi_typedarray_type type, uint64_t bytes) {
    return static_cast<T*>(ToBuffer(At(key), type, bytes));
  }
  template <typename Key>
  bool IsAddress(Key key) {
    return TypeOf(At(key)) == napi_bigint;
  }
  // The value itself, for a look at its class.
  template <typename Key>
  Napi::Value Value(Key key) {
    return {env_, At(key)};
  }
  template <typename Key>
  bool IsUndefined(Key key) {
    return TypeOf(At(key)) == napi_undefined;
  }
  // Makes `status()` a failure, for checks that only the call can make; `what` is the refused value.
  void Refuse(int64_t what = 0);

 private:
  napi_value At(size_t position) const { return (*info_)[position]; }
  napi_value At(int position) const { return (*info_)[static_cast<size_t>(position)]; }
  napi_value At(const char* name);
  napi_valuetype TypeOf(napi_value value);
  int64_t ToInteger(napi_value value, int64_t least, int64_t most);
  uint64_t ToAddress(napi_value value);
  double ToDouble(napi_value value);
  bool ToBoolean(napi_value value);
  std::string ToText(napi_value value);
  Bytes ToArray(napi_value value, napi_typedarray_type type);
  void* ToBuffer(napi_value value, napi_typedarray_type type, uint64_t bytes);
  template <typename T>
  std::span<T> ToSpan(napi_value value, napi_typedarray_type type) {
    const Bytes array = ToArray(value, type);
    return {static_cast<T*>(array.data), array.bytes / sizeof(T)};
  }

  napi_env env_;
  const Napi::CallbackInfo* info_;
  napi_value object_ = nullptr;
  const char* call_;
  Status status_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_ARGUMENTS_H_
