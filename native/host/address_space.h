// AddressSpace: the reservations of a driver by address, and the number of kernel mappings they all make.
// Owns the book-keeping, not the addresses, and books in the process's count too. Behind each range it counts an
// inaccessible guard: two reservations side by side then never share a mapping (the count stays exact), and a write
// past the end of one tensor never reaches the next. Threads: the caller locks.
#ifndef VKV_HOST_ADDRESS_SPACE_H_
#define VKV_HOST_ADDRESS_SPACE_H_

#include <cstdint>
#include <map>

#include "host/mapping_table.h"
#include "status.h"

namespace vkv::host {

struct AddressRange {
  AddressRange(uint64_t address, uint64_t bytes, uint64_t guard_bytes, uint64_t page_bytes, uint64_t file_offset)
      : address(address),
        bytes(bytes),
        guard_bytes(guard_bytes),
        page_bytes(page_bytes),
        file_offset(file_offset),
        table(bytes / page_bytes, page_bytes) {}

  const uint64_t address;
  const uint64_t bytes;
  const uint64_t guard_bytes;  // follow the range
  const uint64_t page_bytes;
  const uint64_t file_offset;  // offset of the page at home at the range's first address
  MappingTable table;
};

// A run of whole pages of one range.
struct PageRun {
  AddressRange* range = nullptr;
  uint64_t first = 0;
  uint64_t pages = 0;

  uint64_t end() const { return first + pages; }
};

class AddressSpace {
 public:
  static constexpr uint64_t kMappingsOfRange = 2;  // an empty range and its guard

  uint64_t ranges() const { return ranges_.size(); }
  uint64_t mappings() const { return mappings_; }

  void Add(uint64_t address, uint64_t bytes, uint64_t guard_bytes, uint64_t page_bytes, uint64_t file_offset);
  // Pre: nothing is mapped in it.
  void Remove(const AddressRange& range);
  // Forgets all ranges, whatever is mapped in them. Not done by a destructor: in a forked child they belong to the
  // parent.
  void Clear();

  // The range that holds all these bytes, or null. Valid until it is removed.
  AddressRange* Find(uint64_t address, uint64_t bytes);
  // The run of these bytes; false unless they are whole pages of one range.
  bool FindRun(uint64_t address, uint64_t bytes, PageRun& run);
  // The first range above this address, or null: one after another.
  const AddressRange* After(uint64_t address) const;

  // mappings() if the page at `offset` were mapped at an unmapped index.
  uint64_t MappingsWith(const AddressRange& range, uint64_t index, uint64_t offset) const {
    return mappings_ - range.table.mappings() + range.table.MappingsWith(index, offset);
  }
  void Map(AddressRange& range, uint64_t index, uint64_t offset, PageIndex page);
  void Unmap(AddressRange& range, uint64_t index);

 private:
  void Book(int64_t mappings);

  std::map<uint64_t, AddressRange> ranges_;  // by address
  uint64_t mappings_ = 0;
};

}  // namespace vkv::host

#endif  // VKV_HOST_ADDRESS_SPACE_H_
