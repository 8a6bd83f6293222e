// ViewBytes: keeps V8's count of external memory from rising with each view of a cache.
//
// V8 counts all bytes of a view as memory that collecting garbage could free, though a view owns none, and collects for
// milliseconds once the count has risen by 64 MiB. So the bytes of views that ended stay counted, as spare, and the
// next view takes its bytes from there: the count rises with the most that is seen at once, not with each view. It is
// changed while V8 counts the view, so that it never falls meanwhile: V8 looks at how much it rose from its lowest.
//
// Invariant: of what is in V8's count, `spare_bytes_` is ours, and the rest V8's own. The count cannot fall below zero,
// where V8 ends the process, whenever a view is detached, transferred or collected. Threads: the environment's.
#ifndef VKV_ADDON_VIEW_BYTES_H_
#define VKV_ADDON_VIEW_BYTES_H_

#include <napi.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace vkv::addon {

class ViewBytes {
 public:
  // V8 has counted a view of the slot. It collects for one of more than kMostBytes in any case.
  void AfterView(Napi::Env env, int32_t slot, int64_t bytes) {
    if (bytes > kMostBytes) return;
    shown_bytes_[slot] += bytes;
    ChangeSpare(env, std::max(spare_bytes_ - bytes, int64_t{0}));
  }

  // V8 is about to take the slot's views off its count.
  void BeforeRevoke(Napi::Env env, int32_t slot) {
    const auto found = shown_bytes_.find(slot);
    if (found == shown_bytes_.end()) return;
    ChangeSpare(env, std::min(spare_bytes_ + found->second, kMostBytes));
    shown_bytes_.erase(found);
  }

  // The cache has no views any more, and none will come.
  void Close(Napi::Env env) {
    shown_bytes_.clear();
    ChangeSpare(env, 0);
  }

 private:
  // By how much the count may rise until V8 collects. Also the most that it has too much while nothing is seen.
  static constexpr int64_t kMostBytes = int64_t{64} << 20;

  void ChangeSpare(Napi::Env env, int64_t bytes) {
    if (bytes != spare_bytes_) Napi::MemoryManagement::AdjustExternalMemory(env, bytes - spare_bytes_);
    spare_bytes_ = bytes;
  }

  int64_t spare_bytes_ = 0;
  std::unordered_map<int32_t, int64_t> shown_bytes_;  // by slot
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_VIEW_BYTES_H_
