// NativeCache: a KvCache, its mapper and its test pattern, seen from JavaScript. Converts and forwards.
//
// The rows of each slot stand in an Int32Array bound at construction, and whether it is in quarantine in a Uint8Array;
// only publish(), on the JavaScript thread, writes them. Lists of slots and rows pass as an Int32Array of pairs with a
// count: one crossing per step, nothing allocated.
#ifndef VKV_ADDON_CACHE_BINDING_H_
#define VKV_ADDON_CACHE_BINDING_H_

#include <napi.h>

#include <memory>
#include <string>

#include "addon/arguments.h"
#include "addon/context.h"
#include "kv_cache.h"
#include "mapper.h"
#include "pattern.h"
#include "slot_windows.h"

namespace vkv::addon {

class NativeCache : public Napi::ObjectWrap<NativeCache>, private Stoppable {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  // (pool, {pageBytes, slots, maxTokens, tokenBytes: Float64Array, tensors: Float64Array of triplets, scrub, mapper},
  // rows, quarantined)
  explicit NativeCache(const Napi::CallbackInfo& info);
  ~NativeCache() override;

 private:
  Napi::Value Grow(const Napi::CallbackInfo& info);     // (pairs, count)
  Napi::Value Request(const Napi::CallbackInfo& info);  // (pairs, count)
  Napi::Value Cancel(const Napi::CallbackInfo& info);   // (slot)
  Napi::Value Quiesce(const Napi::CallbackInfo& info);
  Napi::Value Shrink(const Napi::CallbackInfo& info);       // (slot, rows)
  Napi::Value Promise(const Napi::CallbackInfo& info);      // (slot, rows)
  Napi::Value Assign(const Napi::CallbackInfo& info);       // (slot, tenant)
  Napi::Value Keep(const Napi::CallbackInfo& info);         // ([slot, group, id, rows] * count, count)
  Napi::Value Drop(const Napi::CallbackInfo& info);         // (ids, count)
  Napi::Value Alias(const Napi::CallbackInfo& info);        // (slot, ids, from, to)
  Napi::Value CopyGroup(const Napi::CallbackInfo& info);    // (slot, group, from slot, id, tokens, stream)
  Napi::Value Detach(const Napi::CallbackInfo& info);       // (slot, group, tokens, stream)
  Napi::Value Publish(const Napi::CallbackInfo& info);      // () => changed slots
  Napi::Value MapperState(const Napi::CallbackInfo& info);  // () => {isIdle, lateErrors, starved, lastError}
  Napi::Value Counters(const Napi::CallbackInfo& info);
  Napi::Value Address(const Napi::CallbackInfo& info);  // (reservation) => BigInt
  Napi::Value Window(const Napi::CallbackInfo& info);   // (slot, reservation, bytes) => ArrayBuffer
  Napi::Value Revoke(const Napi::CallbackInfo& info);   // (slot, is escaped)
  Napi::Value Stamp(const Napi::CallbackInfo& info);    // (slot, from, tokens, key)
  Napi::Value Check(const Napi::CallbackInfo& info);    // (slot, from, tokens, key) => wrong tokens
  Napi::Value Verify(const Napi::CallbackInfo& info);   // () => pages in use
  Napi::Value Close(const Napi::CallbackInfo& info);

  void StopForTeardown() override;
  void StopMapper();
  // Repeats TypeScript's checks of ranges: a value outside them would access other memory.
  int32_t ReadSlot(Arguments& given, size_t at) const;
  int32_t ReadRows(Arguments& given, size_t at) const;
  int32_t ReadGroup(Arguments& given, size_t at) const;
  std::span<const GrowCommand> ReadCommands(Arguments& given) const;
  // Tokens of a slot, and a key: (slot, from, tokens, key).
  struct Stretch {
    int32_t slot = 0;
    uint64_t from = 0;
    uint64_t tokens = 0;
    uint64_t key = 0;
  };
  Stretch ReadStretch(Arguments& given) const;
  int64_t slots() const { return static_cast<int64_t>(cache_->layout().slots()); }
  int64_t reservations() const { return static_cast<int64_t>(cache_->layout().reservations()); }
  int64_t most_rows() const { return static_cast<int64_t>(cache_->layout().MaxRows()); }
  int64_t most_groups() const { return most_rows() / static_cast<int64_t>(cache_->layout().GroupRows()); }
  int64_t most_tokens() const { return static_cast<int64_t>(cache_->layout().max_tokens()); }
  // Does `call`, if its arguments could be read; throws what fails.
  template <typename Call>
  Napi::Value Run(const Napi::CallbackInfo& info, const Arguments& given, Call call);

  std::string driver_kind_;         // for errors
  EnvContext* context_ = nullptr;   // while registered there
  std::unique_ptr<KvCache> cache_;  // null when the constructor threw
  std::unique_ptr<Mapper> mapper_;  // null without a background thread
  std::unique_ptr<Pattern> pattern_;
  std::unique_ptr<SlotWindows> windows_;
  Napi::Reference<Napi::Int32Array> rows_;
  Napi::Reference<Napi::Uint8Array> quarantined_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_CACHE_BINDING_H_
