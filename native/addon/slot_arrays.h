// SlotArrays: the typed arrays in which JavaScript reads a cache's slots without a call: rows (Int32Array), quarantine
// (Uint8Array, 0 or 1) and, if it asked for them, first rows (Int32Array), index the slot, bound when the cache is
// opened; and `news` (Float64Array) of its mapper and pool.
//
// Written here only, on the JavaScript thread, while a call of the addon's runs. A policy that was shown them may have
// given their memory away: that is a failure (kInternal), and what changed is still to be written then.
#ifndef VKV_ADDON_SLOT_ARRAYS_H_
#define VKV_ADDON_SLOT_ARRAYS_H_

#include <napi.h>

#include "kv_cache.h"
#include "mapper.h"

namespace vkv::addon {

class SlotArrays {
 public:
  // Pre: arrays of these types, with an element per slot; `first` may be empty.
  void Open(Napi::Int32Array rows, Napi::Uint8Array quarantined, Napi::Int32Array first);
  // Lets go of the arrays. Idempotent.
  void Close();
  bool is_open() const { return !rows_.IsEmpty(); }

  // Writes the slots that either thread has changed since the last time. Nothing once closed.
  Status WriteSlots(KvCache& cache);
  // Writes the news: late errors, requests that the mapper dropped, whether it is idle (0 or 1), pages of the pool that
  // can be taken beside the earmarked ones. Pre: open.
  Status WriteNews(const MapperState& state, KvCache& cache);
  Napi::Value news() const { return news_.Value(); }

 private:
  Napi::Reference<Napi::Int32Array> rows_;
  Napi::Reference<Napi::Uint8Array> quarantined_;
  Napi::Reference<Napi::Int32Array> first_;
  Napi::Reference<Napi::Float64Array> news_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_SLOT_ARRAYS_H_
