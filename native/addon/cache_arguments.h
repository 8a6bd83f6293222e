// CacheArguments: what JavaScript passed to a call of a cache, in the range that the cache's layout allows: TypeScript
// has checked it, and what is outside would be a touch of other memory. As Arguments otherwise.
#ifndef VKV_ADDON_CACHE_ARGUMENTS_H_
#define VKV_ADDON_CACHE_ARGUMENTS_H_

#include <span>

#include "addon/arguments.h"
#include "kv_cache.h"

namespace vkv::addon {

// Tokens of a slot, and the key of their test pattern.
struct Stretch {
  int32_t slot = 0;
  uint64_t from = 0;
  uint64_t tokens = 0;
  uint64_t key = 0;
};

class CacheArguments : public Arguments {
 public:
  // `call`: a static string, for errors.
  CacheArguments(const Napi::CallbackInfo& info, const char* call, const Layout& layout)
      : Arguments(info, call), layout_(layout) {}

  int32_t Slot(size_t at) { return static_cast<int32_t>(Integer(at, 0, slots() - 1)); }
  int32_t SlotOrNone(size_t at) { return static_cast<int32_t>(Integer(at, -1, slots() - 1)); }
  int32_t Rows(size_t at) { return static_cast<int32_t>(Integer(at, 0, rows())); }
  uint64_t Tokens(size_t at) { return static_cast<uint64_t>(Integer(at, 0, tokens())); }
  size_t Reservation(size_t at) {
    return static_cast<size_t>(Integer(at, 0, static_cast<int64_t>(layout_.reservations()) - 1));
  }
  std::span<const GrowCommand> Grows();                                     // (pairs, count)
  std::span<const SlideCommand> Slides();                                   // (triples, count)
  std::span<const KeepCommand> Keeps();                                     // (triples, count)
  std::span<const PutCommand> Puts();                                       // (quads, count)
  std::span<const int32_t> Drops() { return Ids(Entries<int32_t>(0, 1)); }  // (ids, count)
  KeptRun Kept(size_t at);                                                  // (…, ids, from, to)
  CopyCommand Copy(size_t at, int32_t slot, int32_t row);                   // (…, from slot, id, tokens, stream)
  Stretch Stamped();                                                        // (slot, from, tokens, key)

 private:
  // Checked numbers of kept rows.
  std::span<const int32_t> Ids(std::span<const int32_t> ids);
  int64_t slots() const { return static_cast<int64_t>(layout_.slots()); }
  int64_t rows() const { return static_cast<int64_t>(layout_.MaxRows()); }
  int64_t tokens() const { return static_cast<int64_t>(layout_.max_tokens()); }

  const Layout& layout_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_CACHE_ARGUMENTS_H_
