// MappingTable: what is mapped in one reservation, page by page, and how many kernel mappings that makes.
// The kernel keeps one mapping for neighbours that are both unmapped, or whose offsets in the page file
// follow each other; mappings() counts the same way, so it equals what /proc/self/maps shows. A page that has
// no access yet is not known to the kernel but counts as if it were: giving access never needs more mappings
// than Map allowed. Threads: the caller locks.
#ifndef VKV_HOST_MAPPING_TABLE_H_
#define VKV_HOST_MAPPING_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "host/page_table.h"

namespace vkv::host {

class MappingTable {
 public:
  struct Entry {
    uint64_t offset = 0;  // of the mapped page in the page file
    PageIndex page = 0;
    bool is_mapped = false;
    bool is_accessible = false;
    bool is_busy = false;   // a system call on it is under way
    bool has_home = false;  // a page, mapped here or not, has the offset that corresponds to this address
  };

  MappingTable(uint64_t pages, uint64_t page_bytes);

  uint64_t pages() const { return pages_; }
  uint64_t mapped_pages() const { return mapped_pages_; }
  uint64_t mappings() const { return mappings_; }

  const Entry& At(uint64_t index) const {
    const auto& block = blocks_[index / kBlockEntries];
    return block == nullptr ? kUnmapped : block[index % kBlockEntries];
  }

  // mappings() if the page at `offset` were mapped at an unmapped index.
  uint64_t MappingsWith(uint64_t index, uint64_t offset) const;
  // Pre: the index is unmapped.
  void Map(uint64_t index, uint64_t offset, PageIndex page);
  // Pre: the index is mapped.
  void Unmap(uint64_t index);

  void set_accessible(uint64_t index, bool value) { Touch(index).is_accessible = value; }
  void set_busy(uint64_t index, bool value) { Touch(index).is_busy = value; }
  void set_home(uint64_t index, bool value) { Touch(index).has_home = value; }

 private:
  static constexpr uint64_t kBlockEntries = 512;
  static const Entry kUnmapped;

  Entry& Touch(uint64_t index) {
    auto& block = blocks_[index / kBlockEntries];
    if (block == nullptr) block = std::make_unique<Entry[]>(kBlockEntries);
    return block[index % kBlockEntries];
  }
  bool Merge(const Entry& left, const Entry& right) const {
    if (!left.is_mapped || !right.is_mapped) return left.is_mapped == right.is_mapped;
    return left.offset + page_bytes_ == right.offset;
  }
  // Whether the page at `offset` would only move the end of a run by one: as most pages of a long text do.
  bool IsNextOfRun(uint64_t index, uint64_t offset) const {
    if (index == 0 || index + 1 == pages_ || At(index + 1).is_mapped) return false;
    const Entry& before = At(index - 1);
    return before.is_mapped && before.offset + page_bytes_ == offset;
  }
  // Boundaries between `entry`, if it were at `index`, and its neighbours.
  uint64_t Boundaries(uint64_t index, const Entry& entry) const {
    uint64_t boundaries = 0;
    if (index > 0 && !Merge(At(index - 1), entry)) ++boundaries;
    if (index + 1 < pages_ && !Merge(entry, At(index + 1))) ++boundaries;
    return boundaries;
  }

  const uint64_t pages_;
  const uint64_t page_bytes_;
  uint64_t mapped_pages_ = 0;
  uint64_t mappings_ = 1;
  std::vector<std::unique_ptr<Entry[]>> blocks_;  // null: nothing was ever mapped there
};

}  // namespace vkv::host

#endif  // VKV_HOST_MAPPING_TABLE_H_
