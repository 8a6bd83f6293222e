// SlotWindows: the windows through which JavaScript sees the slots of a KvCache, at most one for each slot and
// reservation.
//
// The slot's own addresses are never handed to JavaScript: what it keeps of a view (a buffer it has transferred, a
// thread it gave it to) must see neither the slot's next content nor a fault. Invariant: a window shows a part of what
// is mapped in its slot, from the start. Threads: the owner's.
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

  // An address at which the first `bytes` bytes of the slot in the reservation are seen until Hide. Pre: they are
  // mapped, and what is mapped there is not unmapped before Hide. kOutOfMappings, kOutOfAddressSpace: nothing has
  // changed.
  Status Show(int32_t slot, size_t reservation, uint64_t bytes, uint64_t& address);
  // Shows nothing of the slot any more. `is_escaped`: JavaScript may still touch its windows; their addresses then hold
  // private memory until the process ends.
  void Hide(int32_t slot, bool is_escaped);
  // Frees all addresses; where something is shown still, as if it had escaped.
  void Close();

 private:
  struct SlotWindow {
    size_t reservation;
    std::unique_ptr<host::Window> window;
  };

  Status TakeMappings(uint64_t mappings);

  const KvCache& cache_;
  std::unordered_map<int32_t, std::vector<SlotWindow>> by_slot_;
  uint64_t spare_mappings_ = 0;  // that may be made before the process's mappings are counted again
};

}  // namespace vkv

#endif  // VKV_SLOT_WINDOWS_H_
