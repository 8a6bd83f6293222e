// EnvContext: what the addon keeps per Node environment (main thread or worker): the function that makes errors, the
// classes, the caches whose mapper must be joined before the environment goes, and the threads of the CPU kernels. No
// globals. Threads: the environment's own.
#ifndef VKV_ADDON_CONTEXT_H_
#define VKV_ADDON_CONTEXT_H_

#include <napi.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_set>

#include "kernels/cpu/worker_pool.h"
#include "status.h"

namespace vkv::addon {

// Something with a thread that must stop before its environment ends.
class Stoppable {
 public:
  // Stops the thread for good; from here on the context may be gone.
  virtual void StopForTeardown() = 0;

 protected:
  ~Stoppable() = default;
};

struct EnvContext {
  Napi::FunctionReference make_error;
  Napi::FunctionReference driver_class;
  Napi::FunctionReference pool_class;
  Napi::FunctionReference cache_class;
  Napi::FunctionReference mock_class;
  std::unordered_set<Stoppable*> stoppables;
  // Threads start when a kernel first wants them.
  std::shared_ptr<kernels::WorkerPool> workers = std::make_shared<kernels::WorkerPool>();
};

inline EnvContext& ContextOf(Napi::Env env) { return *env.GetInstanceData<EnvContext>(); }

// Throws the JavaScript error of a failed status; true when it did. `driver` is the kind of the driver in use and
// `text` what it wrote about the failure, for the error.
bool ThrowIfFailed(Napi::Env env, const Status& status, const std::string& driver = {}, const std::string& text = {});
// The error object itself, or undefined for an ok status.
Napi::Value MakeError(Napi::Env env, const Status& status, const std::string& driver, const std::string& text = {});

// Conversions; TypeScript has validated the arguments, so a wrong type here is our own bug and throws a plain
// TypeError.
uint64_t ToUint64(const Napi::Value& value);  // a Number or a BigInt
int64_t ToInt64(const Napi::Value& value);
int32_t ToInt32(const Napi::Value& value);
std::span<int32_t> ToInt32Span(const Napi::Value& value);       // an Int32Array; empty for anything else
std::span<double> ToFloat64Span(const Napi::Value& value);      // a Float64Array; empty for anything else
std::span<uint8_t> ToBytes(const Napi::Value& value);           // a Uint8Array; empty for anything else
Napi::BigInt FromUint64(Napi::Env env, uint64_t value);         // addresses and handles
inline Napi::Number FromCount(Napi::Env env, uint64_t value) {  // counts and sizes
  return Napi::Number::New(env, static_cast<double>(value));
}

}  // namespace vkv::addon

#endif  // VKV_ADDON_CONTEXT_H_
