// EnvContext: what the addon keeps per Node environment (main thread or worker): the function that makes errors, the
// classes, what has threads that must be joined before the environment goes: caches, stores, streams of host drivers,
// and the threads of the CPU kernels. No globals. Threads: the environment's own.
#ifndef VKV_ADDON_CONTEXT_H_
#define VKV_ADDON_CONTEXT_H_

#include <napi.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "addon/notifier.h"
#include "host/driver_host.h"
#include "kernels/cpu/worker_pool.h"
#include "status.h"

namespace vkv::addon {

// An object with a thread that must stop before its environment ends.
class Stoppable {
 public:
  // Stops the thread for good; from here on the context may be gone.
  virtual void StopForTeardown() = 0;

 protected:
  ~Stoppable() = default;
};

// A mark of a host stream was reached: what was queued before it is done, or was dropped.
struct StreamMark {
  int64_t id = 0;
  HostStream::Failure failure;
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
  // Those that work for a stream's thread, which runs beside the environment's.
  std::vector<std::pair<std::weak_ptr<HostStream>, std::weak_ptr<kernels::WorkerPool>>> stream_workers;
  std::vector<std::weak_ptr<Driver>> host_drivers;
  Notifier<StreamMark> stream_marks;

  std::shared_ptr<kernels::WorkerPool> WorkersOf(const std::shared_ptr<HostStream>& stream);  // null: the environment
  void StopForTeardown();
};

inline EnvContext& ContextOf(Napi::Env env) { return *env.GetInstanceData<EnvContext>(); }

// Throws the JavaScript error of a failed status and returns true; false when the status is ok. `driver` is the kind of
// the driver, `text` its log, for the error.
bool ThrowIfFailed(Napi::Env env, const Status& status, const std::string& driver = {}, const std::string& text = {});
// The error object itself, or undefined for an ok status.
Napi::Value MakeError(Napi::Env env, const Status& status, const std::string& driver, const std::string& text = {});

// The addon's object behind `value`, checked by its class's tag. Null for any other object, and while the environment
// is being terminated.
template <typename Class>
Class* UnwrapTagged(const Napi::Value& value) {
  bool is_tagged = false;
  void* wrapped = nullptr;
  napi_valuetype type = napi_undefined;
  if (napi_typeof(value.Env(), value, &type) != napi_ok || type != napi_object) return nullptr;
  if (napi_check_object_type_tag(value.Env(), value, &Class::kTag, &is_tagged) != napi_ok || !is_tagged) return nullptr;
  return napi_unwrap(value.Env(), value, &wrapped) == napi_ok ? static_cast<Class*>(wrapped) : nullptr;
}

// Conversions for calls that check their numbers themselves, as drivers do; 0 for anything but a number. All others
// read through Arguments.
uint64_t ToUint64(const Napi::Value& value);  // a Number or a BigInt
int32_t ToInt32(const Napi::Value& value);
Napi::BigInt FromUint64(Napi::Env env, uint64_t value);         // addresses and handles
inline Napi::Number FromCount(Napi::Env env, uint64_t value) {  // counts and sizes
  return Napi::Number::New(env, static_cast<double>(value));
}

}  // namespace vkv::addon

#endif  // VKV_ADDON_CONTEXT_H_
