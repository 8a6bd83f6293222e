// NativeCache: a KvCache, its mapper and its test pattern, seen from JavaScript. Converts and forwards.
//
// Every call that may change a slot, or that waits for the mapper, writes all slots that changed into the bound arrays
// before it returns, also when it throws; synchronize() does it for what the mapper alone changed. Lists of slots and
// rows pass as an Int32Array of pairs with a count: one crossing per step, nothing allocated.
#ifndef VKV_ADDON_CACHE_BINDING_H_
#define VKV_ADDON_CACHE_BINDING_H_

#include <napi.h>

#include <memory>
#include <string>
#include <vector>

#include "addon/arguments.h"
#include "addon/context.h"
#include "addon/notifier.h"
#include "addon/slot_arrays.h"
#include "addon/view_bytes.h"
#include "block_copier.h"
#include "fault_report.h"
#include "kv_cache.h"
#include "mapper.h"
#include "pattern.h"
#include "slot_windows.h"

namespace vkv::addon {

class NativeCache : public Napi::ObjectWrap<NativeCache>, private Stoppable {
 public:
  static constexpr napi_type_tag kTag = {0x8d3f6a1c57e94b02, 0x9b70c2e41fa85d36};
  static void Define(Napi::Env env, Napi::Object exports);

  // (pool, {pageBytes, slots, maxTokens, tokenBytes: Float64Array, tensors: Float64Array of triplets, scrub,
  // mapper: boolean or the cache whose thread it shares, faultNames: Float64Array, faultSet}, rows, quarantined, first
  // rows or undefined)
  explicit NativeCache(const Napi::CallbackInfo& info);
  ~NativeCache() override;

 private:
  Napi::Value Grow(const Napi::CallbackInfo& info);     // (pairs, count)
  Napi::Value Request(const Napi::CallbackInfo& info);  // (pairs, count)
  Napi::Value Cancel(const Napi::CallbackInfo& info);   // (slot)
  Napi::Value Quiesce(const Napi::CallbackInfo& info);
  Napi::Value Shrink(const Napi::CallbackInfo& info);     // (slot, rows)
  Napi::Value Slide(const Napi::CallbackInfo& info);      // ([slot, first, rows] * count, count)
  Napi::Value Earmark(const Napi::CallbackInfo& info);    // (slot, rows)
  Napi::Value Assign(const Napi::CallbackInfo& info);     // (slot, tenant)
  Napi::Value Keep(const Napi::CallbackInfo& info);       // ([slot, row, id] * count, count)
  Napi::Value Drop(const Napi::CallbackInfo& info);       // (ids, count)
  Napi::Value Alias(const Napi::CallbackInfo& info);      // (slot, ids, from, to)
  Napi::Value ShareRows(const Napi::CallbackInfo& info);  // (from slot, slot, rows)
  // (slot, tenant, ids, from, to, rows, earmarked rows, from slot, id, tokens, stream)
  Napi::Value Admit(const Napi::CallbackInfo& info);
  Napi::Value Detach(const Napi::CallbackInfo& info);  // (slot, row, tokens, stream)
  Napi::Value Copy(const Napi::CallbackInfo& info);    // (slot, row, from slot, id, tokens)
  Napi::Value Read(const Napi::CallbackInfo& info);    // (slot, reservation, from, bytes)
  Napi::Value Put(const Napi::CallbackInfo& info);     // ([slot, from, tokens, at] * count, count, bytes)
  // ([slot, from, tokens, at] * count, count, driver, address, bytes, stream, arena or undefined)
  Napi::Value Fetch(const Napi::CallbackInfo& info);
  Napi::Value Synchronize(const Napi::CallbackInfo& info);  // () writes slots and news
  Napi::Value MapperState(const Napi::CallbackInfo& info);  // () => {isIdle, lateErrors, droppedRequests, lastError}
  Napi::Value News(const Napi::CallbackInfo& info);         // () => Float64Array that synchronize() writes
  Napi::Value Counters(const Napi::CallbackInfo& info);
  Napi::Value Address(const Napi::CallbackInfo& info);       // (reservation) => BigInt
  Napi::Value Window(const Napi::CallbackInfo& info);        // (slot, reservation, from, to) => ArrayBuffer
  Napi::Value BeforeRevoke(const Napi::CallbackInfo& info);  // (slot)
  Napi::Value Revoke(const Napi::CallbackInfo& info);        // (slot, is escaped)
  Napi::Value Stamp(const Napi::CallbackInfo& info);         // (slot, from, tokens, key)
  Napi::Value Check(const Napi::CallbackInfo& info);         // (slot, from, tokens, key) => wrong tokens
  // (threads, (id, damaged tensor or -1, error or undefined) => void)
  Napi::Value OpenCopier(const Napi::CallbackInfo& info);
  Napi::Value CopierGate(const Napi::CallbackInfo& info);
  // (id, is load, slot, from, tokens, skipped, block tokens, payload, sums, stream or undefined)
  Napi::Value CopyBlock(const Napi::CallbackInfo& info);
  Napi::Value CopierStaging(const Napi::CallbackInfo& info);  // () => [pinned, pageable bytes] or undefined
  Napi::Value CancelCopies(const Napi::CallbackInfo& info);
  Napi::Value Verify(const Napi::CallbackInfo& info);  // () => pages in use
  Napi::Value Close(const Napi::CallbackInfo& info);

  void StopForTeardown() override;
  void StopThreads();
  void RegisterForTeardown(Napi::Env env);
  // On a thread of its own, or on that of `other`.
  Status StartMapper(const NativeCache* other);
  vkv::MapperState state_of_mapper() const { return mapper_ ? mapper_->state() : vkv::MapperState(); }
  // Does `call`, if its arguments could be read; throws what fails.
  template <typename Call>
  Napi::Value Run(const Napi::CallbackInfo& info, const Arguments& given, Call call);
  // The same for a call after which the slots in the bound arrays are what they are in the cache. Where the arrays are
  // gone, the call's own failure goes first.
  template <typename Call>
  Napi::Value Change(const Napi::CallbackInfo& info, const Arguments& given, Call call);
  // The same once what the mapper was asked for the slot is dropped, and the row at hand finished.
  template <typename Call>
  Napi::Value ChangeSlot(const Napi::CallbackInfo& info, const Arguments& given, int32_t slot, Call call);

  std::string driver_kind_;         // for errors
  EnvContext* context_ = nullptr;   // while registered there
  std::unique_ptr<KvCache> cache_;  // null when the constructor threw
  std::unique_ptr<Mapper> mapper_;  // null without a background thread
  std::unique_ptr<Pattern> pattern_;
  std::unique_ptr<SlotWindows> windows_;
  ViewBytes view_bytes_;
  SlotArrays arrays_;
  FaultReport fault_report_;
  std::vector<TensorSpan> tensors_;
  Notifier<BlockCopied> copied_;
  std::unique_ptr<BlockCopier> copier_;  // null until opened
};

template <typename Call>
Napi::Value NativeCache::Run(const Napi::CallbackInfo& info, const Arguments& given, Call call) {
  const Status status = given.ok() ? call() : given.status();
  if (mapper_) mapper_->Refill();  // what a call took of the free list comes back before it is needed
  ThrowIfFailed(info.Env(), status, driver_kind_);
  return info.Env().Undefined();
}

}  // namespace vkv::addon

#endif  // VKV_ADDON_CACHE_BINDING_H_
