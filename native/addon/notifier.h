// Notifier: tells a JavaScript function of results that other threads have, each once, on the environment's own thread.
//
// It keeps the environment's loop running only while something is awaited. Nothing is told once it is closed, or while
// the environment ends. Threads: Notify from any; all else from the environment's own.
#ifndef VKV_ADDON_NOTIFIER_H_
#define VKV_ADDON_NOTIFIER_H_

#include <napi.h>

#include <functional>
#include <memory>
#include <mutex>

namespace vkv::addon {

template <typename Result>
class Notifier {
 public:
  // Calls `function` with a result; for the environment's own thread.
  using Tell = std::function<void(Napi::Env env, Napi::Function function, const Result& result)>;

  Notifier() = default;
  ~Notifier() { Close(); }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // False where the environment is ending. Pre: not open.
  bool Open(Napi::Env env, const Napi::Function& function, Tell tell) {
    auto state = std::make_shared<State>();
    state->tell = std::move(tell);
    napi_value name = Napi::String::New(env, "virtual-kv");
    auto* kept = new std::shared_ptr<State>(state);
    const napi_status status = napi_create_threadsafe_function(
        env, function, nullptr, name, 0, 1, kept,
        [](napi_env, void* data, void*) { delete static_cast<std::shared_ptr<State>*>(data); }, kept, Call,
        &state->function);
    if (status != napi_ok) {
      delete kept;
      return false;
    }
    napi_unref_threadsafe_function(env, state->function);
    env_ = env;
    state_ = state;
    return true;
  }

  // So many more results are to come (fewer, below 0): the loop runs on while there are any.
  void Await(int64_t more) {
    if (!state_) return;
    const int64_t before = awaited_;
    awaited_ += more;
    std::lock_guard lock(state_->mutex);
    if (state_->is_closed) return;
    if (before == 0 && awaited_ > 0) napi_ref_threadsafe_function(env_, state_->function);
    if (before > 0 && awaited_ == 0) napi_unref_threadsafe_function(env_, state_->function);
  }

  void Notify(Result result) {
    if (!state_) return;
    auto told = std::make_unique<Result>(std::move(result));
    std::lock_guard lock(state_->mutex);
    if (state_->is_closed) return;
    const napi_status status = napi_call_threadsafe_function(state_->function, told.get(), napi_tsfn_nonblocking);
    if (status == napi_ok)
      told.release();
    else if (status == napi_closing)
      state_->is_closed = true;  // that call was the last one that may be made
  }

  // Pre: no thread is in Notify. Idempotent.
  void Close() {
    if (!state_) return;
    std::lock_guard lock(state_->mutex);
    if (!state_->is_closed) napi_release_threadsafe_function(state_->function, napi_tsfn_abort);
    state_->is_closed = true;
  }

 private:
  struct State {
    std::mutex mutex;  // guards the next two
    napi_threadsafe_function function = nullptr;
    bool is_closed = false;
    Tell tell;
  };

  static void Call(napi_env env, napi_value function, void* context, void* data) {
    std::unique_ptr<Result> result(static_cast<Result*>(data));
    if (env == nullptr) return;  // the environment is ending
    const std::shared_ptr<State> state = *static_cast<std::shared_ptr<State>*>(context);
    state->tell(Napi::Env(env), Napi::Function(env, function), *result);
  }

  napi_env env_ = nullptr;
  int64_t awaited_ = 0;
  std::shared_ptr<State> state_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_NOTIFIER_H_
