#include "addon/context.h"

namespace vkv::addon {

std::shared_ptr<kernels::WorkerPool> EnvContext::WorkersOf(const std::shared_ptr<HostStream>& stream) {
  if (!stream) return workers;
  std::erase_if(stream_workers, [](const auto& known) { return known.second.expired(); });
  for (const auto& [of, pool] : stream_workers)
    if (of.lock() == stream) return pool.lock();
  auto pool = std::make_shared<kernels::WorkerPool>();
  stream_workers.emplace_back(stream, pool);
  return pool;
}

// Streams before the threads that work for them, and before what their commands use.
void EnvContext::StopForTeardown() {
  for (const auto& known : host_drivers)
    if (const auto driver = known.lock()) driver->AsHost()->StopStreams();
  stream_marks.Close();
  for (Stoppable* stoppable : stoppables) stoppable->StopForTeardown();
  workers->Stop();
  for (const auto& [stream, known] : stream_workers)
    if (const auto pool = known.lock()) pool->Stop();
}

// Plain Node-API: where JavaScript can no longer run, each of these calls fails without a further effect.
Napi::Value MakeError(Napi::Env env, const Status& status, const std::string& driver, const std::string& text) {
  if (status.ok()) return env.Undefined();
  EnvContext& context = ContextOf(env);
  if (context.make_error.IsEmpty()) return Napi::Error::New(env, status.call).Value();
  napi_value arguments[9] = {};
  napi_value error = nullptr;
  const bool is_made =
      napi_create_double(env, static_cast<double>(status.code), &arguments[0]) == napi_ok &&
      napi_create_string_utf8(env, status.call, NAPI_AUTO_LENGTH, &arguments[1]) == napi_ok &&
      napi_create_double(env, status.result, &arguments[2]) == napi_ok &&
      napi_create_string_utf8(env, status.result_name, NAPI_AUTO_LENGTH, &arguments[3]) == napi_ok &&
      napi_create_double(env, static_cast<double>(status.what), &arguments[4]) == napi_ok &&
      napi_create_double(env, static_cast<double>(status.how_many), &arguments[5]) == napi_ok &&
      napi_create_string_utf8(env, driver.c_str(), driver.size(), &arguments[6]) == napi_ok &&
      napi_create_double(env, static_cast<double>(status.others), &arguments[7]) == napi_ok &&
      napi_create_string_utf8(env, text.c_str(), text.size(), &arguments[8]) == napi_ok &&
      napi_call_function(env, env.Undefined(), context.make_error.Value(), 9, arguments, &error) == napi_ok;
  return is_made ? Napi::Value(env, error) : env.Undefined();
}

bool ThrowIfFailed(Napi::Env env, const Status& status, const std::string& driver, const std::string& text) {
  if (status.ok()) return false;
  const Napi::Value error = MakeError(env, status, driver, text);
  bool is_pending = true;
  if (napi_is_exception_pending(env, &is_pending) == napi_ok && !is_pending) napi_throw(env, error);
  return true;
}

uint64_t ToUint64(const Napi::Value& value) {
  int64_t number = 0;
  uint64_t address = 0;
  bool is_lossless = true;
  if (napi_get_value_bigint_uint64(value.Env(), value, &address, &is_lossless) == napi_ok) return address;
  return napi_get_value_int64(value.Env(), value, &number) == napi_ok ? static_cast<uint64_t>(number) : 0;
}

int32_t ToInt32(const Napi::Value& value) {
  int32_t number = 0;
  return napi_get_value_int32(value.Env(), value, &number) == napi_ok ? number : 0;
}

Napi::BigInt FromUint64(Napi::Env env, uint64_t value) { return Napi::BigInt::New(env, value); }

}  // namespace vkv::addon
