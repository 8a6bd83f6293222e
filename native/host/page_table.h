// PageTable: the pages of a driver by handle: where each lies in the page file and how often it is mapped.
//
// A handle carries a generation, so one that was released never names a later page.
// Threads: the caller locks.
#ifndef VKV_HOST_PAGE_TABLE_H_
#define VKV_HOST_PAGE_TABLE_H_

#include <cstdint>
#include <vector>

#include "driver.h"

namespace vkv::host {

using PageIndex = uint32_t;

struct Page {
  uint64_t offset = 0;  // in the page file
  uint64_t bytes = 0;   // 0: no page has this index
  uint64_t home = 0;    // the address whose offset it has; 0: its offset belongs to no address
  uint32_t maps = 0;    // addresses it is mapped at
  uint32_t generation = 0;
  bool is_releasing = false;
};

class PageTable {
 public:
  uint64_t live_pages() const { return pages_.size() - unused_.size(); }
  uint64_t live_bytes() const { return live_bytes_; }

  PageHandle Add(uint64_t offset, uint64_t bytes, uint64_t home) {
    PageIndex index = static_cast<PageIndex>(pages_.size());
    if (unused_.empty()) {
      pages_.emplace_back();
    } else {
      index = unused_.back();
      unused_.pop_back();
    }
    Page& page = pages_[index];
    page = {offset, bytes, home, 0, page.generation + 1, false};
    live_bytes_ += bytes;
    return uint64_t{page.generation} << 32 | (index + 1);
  }

  void Remove(PageIndex index) {
    Page& page = pages_[index];
    live_bytes_ -= page.bytes;
    page.bytes = 0;
    unused_.push_back(index);
  }

  // The page, valid until the next Add; null when the handle names none, or one that is being released.
  Page* Find(PageHandle handle) {
    const PageIndex index = IndexOf(handle);
    if (index >= pages_.size()) return nullptr;
    Page& page = pages_[index];
    const bool is_live = page.bytes != 0 && !page.is_releasing && page.generation == handle >> 32;
    return is_live ? &page : nullptr;
  }

  Page& At(PageIndex index) { return pages_[index]; }
  static PageIndex IndexOf(PageHandle handle) { return static_cast<PageIndex>(handle) - 1; }

 private:
  std::vector<Page> pages_;
  std::vector<PageIndex> unused_;
  uint64_t live_bytes_ = 0;
};

}  // namespace vkv::host

#endif  // VKV_HOST_PAGE_TABLE_H_
