#include "mock/page_store.h"

namespace vkv::mock {

bool PageStore::Create(uint64_t bytes, uint64_t& handle) {
  if (bytes > free_bytes()) return false;
  Page page;
  page.bytes = bytes;
  page.references = 1;
  if (!backing_.CreatePage(bytes, page.offset)) return false;
  used_bytes_ += bytes;
  ++live_pages_;
  handle = ++last_handle_;
  pages_.emplace(handle, page);
  return true;
}

bool PageStore::Occupy(uint64_t bytes) {
  if (bytes > free_bytes()) return false;
  occupied_bytes_ += bytes;
  return true;
}

Page* PageStore::FindLive(uint64_t handle) {
  const auto page = pages_.find(handle);
  return page == pages_.end() || page->second.references == 0 ? nullptr : &page->second;
}

void PageStore::AddReference(uint64_t handle) {
  if (++pages_.at(handle).references == 1) ++live_pages_;  // of a mapping alone, until now
}

void PageStore::DropReference(uint64_t handle) {
  if (--pages_.at(handle).references == 0) --live_pages_;
  DropIfUnused(handle);
}

void PageStore::DropMapping(uint64_t handle) {
  --pages_.at(handle).mappings;
  DropIfUnused(handle);
}

void PageStore::DropIfUnused(uint64_t handle) {
  const Page& page = pages_.at(handle);
  if (page.references != 0 || page.mappings != 0) return;
  backing_.DropPage(page.bytes, page.offset);
  used_bytes_ -= page.bytes;
  pages_.erase(handle);
}

}  // namespace vkv::mock
