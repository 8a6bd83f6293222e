// NativeStore: a disk store, seen from JavaScript. Converts and forwards; lib/store validates.
#ifndef VKV_ADDON_STORE_BINDING_H_
#define VKV_ADDON_STORE_BINDING_H_

#include <napi.h>

#include <memory>

#include "addon/answer_channel.h"
#include "addon/context.h"
#include "store/disk_store.h"

namespace vkv::addon {

class NativeStore : public Napi::ObjectWrap<NativeStore>, public Stoppable {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeStore(const Napi::CallbackInfo& info);  // (options, onAnswer, faults or undefined)
  ~NativeStore() override;

  void StopForTeardown() override;

 private:
  Napi::Value Open(const Napi::CallbackInfo& info);  // (id)
  Napi::Value Scan(const Napi::CallbackInfo& info);  // (id, first, count)
  // (id, key, parent, position, tokens, rowBytes, sums, notes, level, payload)
  Napi::Value Put(const Napi::CallbackInfo& info);
  Napi::Value Get(const Napi::CallbackInfo& info);        // (id, key, headerBytes, payload)
  Napi::Value GetTokens(const Napi::CallbackInfo& info);  // (id, key, stripes, counts, tokens, target)
  Napi::Value Reorder(const Napi::CallbackInfo& info);    // (id, key, storedToLogical, level)
  Napi::Value Check(const Napi::CallbackInfo& info);      // (id, key)
  Napi::Value Remove(const Napi::CallbackInfo& info);     // (id, names)
  Napi::Value Sync(const Napi::CallbackInfo& info);       // (id)
  Napi::Value Close(const Napi::CallbackInfo& info);      // (id)
  Napi::Value Stats(const Napi::CallbackInfo& info);
  Napi::Value Stop(const Napi::CallbackInfo& info);

  // Runs `call(id)`, whose answer the channel then expects; throws for bad arguments and once stopped.
  template <typename Call>
  Napi::Value Ask(const Napi::CallbackInfo& info, const Status& given, Call call);
  void StopStore();

  EnvContext* context_ = nullptr;  // null once torn down
  std::shared_ptr<AnswerChannel> channel_;
  std::shared_ptr<store::FileFaults> faults_;  // a test's; null otherwise
  std::unique_ptr<store::DiskStore> store_;    // null once stopped
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_STORE_BINDING_H_
