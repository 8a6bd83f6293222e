// NativeStoreFaults: what a test makes of the system calls of a disk store, seen from JavaScript. Converts and
// forwards.
#ifndef VKV_ADDON_STORE_FAULTS_BINDING_H_
#define VKV_ADDON_STORE_FAULTS_BINDING_H_

#include <napi.h>

#include <memory>

#include "store/file_faults.h"

namespace vkv::addon {

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

#endif  // VKV_ADDON_STORE_FAULTS_BINDING_H_
