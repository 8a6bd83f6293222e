// AddressBook: the reservations of the simulated device and what is mapped in them, with which access.
//
// It has the rules for ranges: its Check methods return the one that a call would break; its other methods require
// that none is broken. It knows nothing of memory. Invariants: reservations are disjoint; each mapping
// lies in one reservation; mappings are disjoint. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_ADDRESS_BOOK_H_
#define VKV_MOCK_ADDRESS_BOOK_H_

#include <cstdint>
#include <map>
#include <vector>

#include "mock/cuda_names.h"
#include "mock/rules.h"

namespace vkv::mock {

struct Mapping {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t page = 0;
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
};

// Bytes of one page, and their address.
struct Extent {
  uint64_t address = 0;
  uint64_t page = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class AddressBook {
 public:
  void AddReservation(uint64_t address, uint64_t bytes);
  Rule CheckReservation(uint64_t address, uint64_t bytes) const;  // exactly one, with nothing mapped in it
  void RemoveReservation(uint64_t address);

  Rule CheckUnmapped(uint64_t address, uint64_t bytes) const;  // in one reservation, and free
  void AddMapping(const Mapping& mapping);
  Rule CheckWholeMappings(uint64_t address,
                          uint64_t bytes) const;  // in one reservation, no hole, nothing cut
  void SetAccess(uint64_t address, uint64_t bytes, CUmemAccess_flags access);
  void RemoveMappings(uint64_t address, uint64_t bytes);

  // Any bytes: all mapped, and readable (or writable).
  bool CanAccess(uint64_t address, uint64_t bytes, bool is_write) const;
  // The mapping that holds the address; nullptr when there is none.
  const Mapping* Find(uint64_t address) const;
  // The mappings that touch the range, in order.
  std::vector<Mapping> MappingsIn(uint64_t address, uint64_t bytes) const;
  // The physical bytes behind the mapped part of the range, in order.
  std::vector<Extent> ExtentsOf(uint64_t address, uint64_t bytes) const;

  uint64_t reservations() const { return reservations_.size(); }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  uint64_t mappings() const { return mappings_.size(); }

 private:
  bool IsInOneReservation(uint64_t address, uint64_t bytes) const;

  std::map<uint64_t, uint64_t> reservations_;  // address -> bytes
  std::map<uint64_t, Mapping> mappings_;       // by address
  uint64_t reserved_bytes_ = 0;
};

// Whether two lists of extents have bytes in common, at whatever addresses.
bool ShareMemory(const std::vector<Extent>& a, const std::vector<Extent>& b);
// Whether they have bytes in common that they see at different addresses.
bool AreAliases(const std::vector<Extent>& a, const std::vector<Extent>& b);

}  // namespace vkv::mock

#endif  // VKV_MOCK_ADDRESS_BOOK_H_
