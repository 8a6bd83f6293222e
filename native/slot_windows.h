// SlotWindows: the windows through which JavaScript sees the slots of a KvCache, at most one for each slot and
// reservation.
//
// JavaScript never gets the slot's own addresses: a view that it keeps (in a transferred buffer, on another thread)
// must show neither the slot's next content nor fault. Invariant: a window shows a part of the slot's mapped rows, from
// the first one on. Threads: the owner's.
#ifndef VKV_SLOT_WINDOWS_H_
#define VKV_SLOT_WINDOWS_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "host/window.h"
#include "kv_cache.h"
#include "status.h"

namespace vkv {

class SlotWindows {
 public:
  explicit SlotWindows(const KvCache& cache) : cache_(cache) {}
  ~SlotWindows() { Close(); }

  // Returns an address that shows the slot's bytes [from, to) in the reservation until Hide, and more of them up to the
  // end of a page. Pre: all from the first mapped row to `to` are mapped, and are not unmapped before Hide.
  // kCopyOutOfRange where `from` lies before that row; kOutOfMappings, kOutOfAddressSpace: nothing has changed. After
  // another failure a part may be shown.
  Status Show(int32_t slot, size_t reservation, uint64_t from, uint64_t to, uint64_t& address);
  // Hides the slot. `is_escaped`: other code may still access its windows; their addresses then hold private memory
  // until the process ends.
  void Hide(int32_t slot, bool is_escaped);
  // Frees all addresses, except those of windows that still show memory, which it treats as escaped.
  void Close();

 private:
  struct SlotWindow {
    size_t reservation;
    std::unique_ptr<host::Window> window;
  };

  std::vector<uint64_t> Runs(uint64_t from, uint64_t bytes) const;
  Status TakeMappings(uint64_t mappings);

  const KvCache& cache_;
  std::unordered_map<int32_t, std::vector<SlotWindow>> by_slot_;
  uint64_t spare_mappings_ = 0;  // that may be made before the process's mappings are counted again
};

}  // namespace vkv

#endif  // VKV_SLOT_WINDOWS_H_
