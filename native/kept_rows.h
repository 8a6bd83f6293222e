// KeptRows: rows that are kept under a number because their content may be used again, whether or not a slot maps them.
// It holds one reference to each of their pages and decides nothing: TypeScript assigns the numbers and
// decides what is kept and dropped.
//
// Threads: the owner's thread only. Makes no driver call and cannot fail.
#ifndef VKV_KEPT_ROWS_H_
#define VKV_KEPT_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "page_pool.h"

namespace vkv {

using RowId = uint32_t;  // small numbers, used again

// Numbers are smaller: there is an entry for each up to the largest.
constexpr RowId kMostRowIds = 1 << 26;

class KeptRows {
 public:
  explicit KeptRows(PagePool& pool) : pool_(pool) {}

  // Keeps the pages of a row, and no others under that number.
  void Keep(RowId id, std::span<const PageId> pages);
  // Drops the references; nothing if there are none.
  void Drop(RowId id);
  // Pages of a row, reservation by reservation; empty when it is not kept.
  std::span<const PageId> pages(RowId id) const;

  // Rows kept now.
  uint64_t count() const { return count_; }
  // Appends every page, once per row that has it.
  void Collect(std::vector<PageId>& pages) const;
  void DropAll();

 private:
  PagePool& pool_;
  std::vector<std::vector<PageId>> by_id_;
  uint64_t count_ = 0;
};

}  // namespace vkv

#endif  // VKV_KEPT_ROWS_H_
