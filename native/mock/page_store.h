// PageStore: the physical pages of the simulated device: handles, references, and the budget they are taken
// from.
//
// A page is live while there are references to it (cuMemCreate gives one, cuMemRetainAllocationHandle more);
// its memory is freed with the last reference and the last mapping, as in CUDA. Handles are never
// used again. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_PAGE_STORE_H_
#define VKV_MOCK_PAGE_STORE_H_

#include <cstdint>
#include <unordered_map>

#include "mock/backing.h"

namespace vkv::mock {

struct Page {
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the backing
  uint64_t references = 0;
  uint64_t mappings = 0;
  bool is_new = true;  // no one has had access to it yet
};

class PageStore {
 public:
  PageStore(Backing& backing, uint64_t memory_bytes) : backing_(backing), memory_bytes_(memory_bytes) {}

  // False when the budget or the system has no room.
  bool Create(uint64_t bytes, uint64_t& handle);
  // The page of a live handle; nullptr when it is dead or never was.
  Page* FindLive(uint64_t handle);
  // The page behind a mapping, live or not.
  Page& Mapped(uint64_t handle) { return pages_.at(handle); }

  void AddReference(uint64_t handle);
  void DropReference(uint64_t handle);
  void AddMapping(uint64_t handle) { ++pages_.at(handle).mappings; }
  void DropMapping(uint64_t handle);

  // Memory that is not for pages. False when there is no room.
  bool Occupy(uint64_t bytes);
  void Vacate(uint64_t bytes) { occupied_bytes_ -= bytes; }
  uint64_t free_bytes() const { return memory_bytes_ - used_bytes_ - occupied_bytes_; }

  uint64_t live_pages() const { return live_pages_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  void DropIfUnused(uint64_t handle);

  Backing& backing_;
  const uint64_t memory_bytes_;
  std::unordered_map<uint64_t, Page> pages_;
  uint64_t used_bytes_ = 0;
  uint64_t occupied_bytes_ = 0;
  uint64_t live_pages_ = 0;                     // with references
  uint64_t last_handle_ = uint64_t{0x5} << 32;  // unlike an address, a stream or an event
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_PAGE_STORE_H_
