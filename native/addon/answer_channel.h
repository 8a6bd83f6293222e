// AnswerChannel: brings answers of a store's threads to the JavaScript thread, where a function of the caller's gets
// them one by one. Keeps the event loop alive while calls are unanswered. Outlives the store: Node.js may still have a
// wake-up of it queued.
#ifndef VKV_ADDON_ANSWER_CHANNEL_H_
#define VKV_ADDON_ANSWER_CHANNEL_H_

#include <napi.h>

#include <memory>
#include <mutex>
#include <vector>

#include "store/disk_store.h"

namespace vkv::addon {

class AnswerChannel : public std::enable_shared_from_this<AnswerChannel> {
 public:
  // `on_answer`: (id, error or undefined, numbers, bytes); 0 is no call's. Null while the environment is being
  // terminated.
  static std::shared_ptr<AnswerChannel> Open(Napi::Env env, Napi::Function on_answer);

  // From any thread.
  void Deliver(store::Answer&& answer);

  // From the environment's own thread: a call that will be answered was made.
  void Expect(napi_env env);
  // Nothing is delivered from here on. No thread may be in Deliver any more. Idempotent.
  void Close();

 private:
  static void Drain(napi_env env, napi_value on_answer, void* context, void* data);
  void Hand(napi_env env, napi_value on_answer, store::Answer& answer);

  napi_threadsafe_function function_ = nullptr;  // null once closed
  size_t expected_ = 0;

  std::mutex mutex_;  // guards the list
  std::vector<store::Answer> answers_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_ANSWER_CHANNEL_H_
