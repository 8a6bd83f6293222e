// NoBacking: addresses that look like real ones and pages without bytes, for models of machines larger than
// this one.
//
// Addresses are not used again while unused ones are left, so that a stale address is detected. Threads: guarded by its
// owner's lock.
#ifndef VKV_MOCK_NO_BACKING_H_
#define VKV_MOCK_NO_BACKING_H_

#include <map>

#include "mock/backing.h"

namespace vkv::mock {

class NoBacking final : public Backing {
 public:
  bool Reserve(uint64_t bytes, uint64_t alignment_bytes, uint64_t& address) override;
  void Free(uint64_t address, uint64_t /*bytes*/) override { reservations_.erase(address); }
  bool CreatePage(uint64_t /*bytes*/, uint64_t& offset) override {
    offset = 0;
    return true;
  }
  void DropPage(uint64_t /*bytes*/, uint64_t /*offset*/) override {}
  bool Show(uint64_t, uint64_t, uint64_t, CUmemAccess_flags) override { return true; }
  void Hide(uint64_t, uint64_t) override {}
  void Copy(uint64_t, uint64_t, uint64_t) override {}
  void Fill(uint64_t, uint8_t, uint64_t) override {}
  uint64_t ShowAgain(uint64_t address, uint64_t) override { return address; }
  void HideAgain(uint64_t, uint64_t) override {}
  bool has_memory() const override { return false; }
  uint64_t mapping_limit() const override { return UINT64_MAX; }
  uint64_t ResidentBytes(uint64_t created_bytes) const override { return created_bytes; }

 private:
  // The first hole of this size at or above `from`; 0 when there is none.
  uint64_t FindHole(uint64_t from, uint64_t bytes, uint64_t alignment_bytes) const;

  std::map<uint64_t, uint64_t> reservations_;  // address -> bytes
  uint64_t next_ = 0;                          // where to look first
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_NO_BACKING_H_
