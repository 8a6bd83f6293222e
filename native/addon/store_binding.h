// NativeStore: a disk store, seen from JavaScript; NativeStoreFaults: what a test makes of its system calls. Converts
// and forwards; lib/store validates.
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
  Napi::Value Put(
      const Napi::CallbackInfo& info);  // (id, key, parent, position, tokens, extra, ids, byteCounts, sources)
  Napi::Value Get(const Napi::CallbackInfo& info);  // (id, key, stripes, offsets, byteCounts, targets)
  Napi::Value GetTokens(const Napi::CallbackInfo& info);
  Napi::Value Reorder(const Napi::CallbackInfo& info);  // (id, key, storedToLogical)
  Napi::Value Check(const Napi::CallbackInfo& info);    // (id, key)
  Napi::Value Remove(const Napi::CallbackInfo& info);   // (id, keys)
  Napi::Value List(const Napi::CallbackInfo& info);     // (id, segment number)
  Napi::Value Sync(const Napi::CallbackInfo& info);     // (id)
  Napi::Value Collect(const Napi::CallbackInfo& info);  // (id)
  Napi::Value Close(const Napi::CallbackInfo& info);    // (id)
  Napi::Value Has(const Napi::CallbackInfo& info);      // (key)
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

class NativeStoreFaults : public Napi::ObjectWrap<NativeStoreFaults> {
 public:
  static constexpr napi_type_tag kTag = {0x5e1c3f0a91d24b77, 0xa04f7be2c6d81935};

  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeStoreFaults(const Napi::CallbackInfo& info);

  const std::shared_ptr<store::FileFaults>& faults() const { return faults_; }

 private:
  Napi::Value Add(
      const Napi::CallbackInfo& info);  // (call or '', nth, times, errno, mostBytes, flippedBit, kills, holds)
  Napi::Value KillAt(const Napi::CallbackInfo& info);  // (point, nth)
  Napi::Value Clear(const Napi::CallbackInfo& info);
  Napi::Value Held(const Napi::CallbackInfo& info);    // how many calls wait
  Napi::Value Counts(const Napi::CallbackInfo& info);  // { call: count }
  Napi::Value Points(const Napi::CallbackInfo& info);  // { point: count }
  Napi::Value StartJournal(const Napi::CallbackInfo& info);
  Napi::Value JournalLength(const Napi::CallbackInfo& info);
  Napi::Value TakeJournal(const Napi::CallbackInfo& info);

  std::shared_ptr<store::FileFaults> faults_ = std::make_shared<store::FileFaults>();
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_STORE_BINDING_H_
