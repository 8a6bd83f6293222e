#include "mock/address_book.h"

#include <algorithm>

namespace vkv::mock {
namespace {

uint64_t EndOf(const Mapping& mapping) { return mapping.address + mapping.bytes; }

// The entry with the last key that is not above `address`, or end().
template <typename Map>
auto FindAtOrBelow(Map& map, uint64_t address) {
  auto above = map.upper_bound(address);
  return above == map.begin() ? map.end() : std::prev(above);
}

// Whether both show the same bytes of a page.
bool Meet(const Extent& one, const Extent& other) {
  return one.page == other.page && one.offset < other.offset + other.bytes && other.offset < one.offset + one.bytes;
}

template <typename Predicate>
bool AnyPair(const std::vector<Extent>& a, const std::vector<Extent>& b, Predicate predicate) {
  for (const Extent& one : a) {
    for (const Extent& other : b) {
      if (predicate(one, other)) return true;
    }
  }
  return false;
}

}  // namespace

void AddressBook::AddReservation(uint64_t address, uint64_t bytes) {
  reservations_[address] = bytes;
  reserved_bytes_ += bytes;
}

Rule AddressBook::CheckReservation(uint64_t address, uint64_t bytes) const {
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != bytes) return rules::kExactReservation;
  const auto mapping = mappings_.lower_bound(address);
  const bool is_empty = mapping == mappings_.end() || mapping->first - address >= bytes;
  return is_empty ? nullptr : rules::kEmptyReservation;
}

void AddressBook::RemoveReservation(uint64_t address) {
  const auto reservation = reservations_.find(address);
  reserved_bytes_ -= reservation->second;
  reservations_.erase(reservation);
}

Rule AddressBook::CheckUnmapped(uint64_t address, uint64_t bytes) const {
  if (!IsInOneReservation(address, bytes)) return rules::kOneReservation;
  return MappingsIn(address, bytes).empty() ? nullptr : rules::kUnmapped;
}

void AddressBook::AddMapping(const Mapping& mapping) { mappings_[mapping.address] = mapping; }

Rule AddressBook::CheckWholeMappings(uint64_t address, uint64_t bytes) const {
  if (!IsInOneReservation(address, bytes)) return rules::kOneReservation;
  const std::vector<Mapping> mappings = MappingsIn(address, bytes);
  uint64_t reached = address;
  for (const Mapping& mapping : mappings) {
    if (mapping.address < address || EndOf(mapping) > address + bytes) return rules::kWholeMappings;
    if (mapping.address != reached) return rules::kNoHole;
    reached = EndOf(mapping);
  }
  return reached == address + bytes ? nullptr : rules::kNoHole;
}

void AddressBook::SetAccess(uint64_t address, uint64_t bytes, CUmemAccess_flags access) {
  for (auto mapping = mappings_.lower_bound(address); mapping != mappings_.end() && mapping->first - address < bytes;
       ++mapping) {
    mapping->second.access = access;
  }
}

void AddressBook::RemoveMappings(uint64_t address, uint64_t bytes) {
  mappings_.erase(mappings_.lower_bound(address), mappings_.lower_bound(address + bytes));
}

bool AddressBook::CanAccess(uint64_t address, uint64_t bytes, bool is_write) const {
  const auto needed = is_write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (address + bytes < address) return false;
  uint64_t reached = address;
  while (reached < address + bytes) {
    const Mapping* mapping = Find(reached);
    if (mapping == nullptr || (mapping->access & needed) != needed) return false;
    reached = EndOf(*mapping);
  }
  return true;
}

const Mapping* AddressBook::Find(uint64_t address) const {
  const auto found = FindAtOrBelow(mappings_, address);
  if (found == mappings_.end() || address >= EndOf(found->second)) return nullptr;
  return &found->second;
}

std::vector<Mapping> AddressBook::MappingsIn(uint64_t address, uint64_t bytes) const {
  std::vector<Mapping> mappings;
  auto mapping = FindAtOrBelow(mappings_, address);
  if (mapping == mappings_.end() || EndOf(mapping->second) <= address) mapping = mappings_.upper_bound(address);
  for (; mapping != mappings_.end() && mapping->first < address + bytes; ++mapping) {
    mappings.push_back(mapping->second);
  }
  return mappings;
}

std::vector<Extent> AddressBook::ExtentsOf(uint64_t address, uint64_t bytes) const {
  std::vector<Extent> extents;
  for (const Mapping& mapping : MappingsIn(address, bytes)) {
    const uint64_t begin = std::max(mapping.address, address);
    const uint64_t end = std::min(EndOf(mapping), address + bytes);
    extents.push_back({begin, mapping.page, begin - mapping.address, end - begin});
  }
  return extents;
}

bool AddressBook::IsInOneReservation(uint64_t address, uint64_t bytes) const {
  const auto found = FindAtOrBelow(reservations_, address);
  if (found == reservations_.end()) return false;
  const uint64_t offset = address - found->first;
  return offset < found->second && bytes <= found->second - offset;
}

bool ShareMemory(const std::vector<Extent>& a, const std::vector<Extent>& b) { return AnyPair(a, b, Meet); }

bool AreAliases(const std::vector<Extent>& a, const std::vector<Extent>& b) {
  return AnyPair(a, b, [](const Extent& one, const Extent& other) {
    return Meet(one, other) && one.address - one.offset != other.address - other.offset;
  });
}

}  // namespace vkv::mock
