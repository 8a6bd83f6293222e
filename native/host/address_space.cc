#include "host/address_space.h"

#include <iterator>

#include "host/process_mappings.h"

namespace vkv::host {

void AddressSpace::Add(uint64_t address, uint64_t bytes, uint64_t guard_bytes, uint64_t page_bytes,
                       uint64_t file_offset) {
  ranges_.try_emplace(address, address, bytes, guard_bytes, page_bytes, file_offset);
  Book(kMappingsOfRange);
}

void AddressSpace::Remove(const AddressRange& range) {
  Book(-static_cast<int64_t>(kMappingsOfRange));
  ranges_.erase(range.address);
}

void AddressSpace::Clear() {
  ranges_.clear();
  Book(-static_cast<int64_t>(mappings_));
}

void AddressSpace::Book(int64_t mappings) {
  if (mappings == 0) return;  // as for most pages of a run, and the count is shared with other threads
  mappings_ += static_cast<uint64_t>(mappings);
  ProcessMappings::Change(mappings);
}

AddressRange* AddressSpace::Find(uint64_t address, uint64_t bytes) {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  AddressRange& range = std::prev(after)->second;
  const uint64_t offset = address - range.address;
  return offset <= range.bytes && bytes <= range.bytes - offset ? &range : nullptr;
}

bool AddressSpace::FindRun(uint64_t address, uint64_t bytes, PageRun& run) {
  AddressRange* const range = Find(address, bytes);
  if (range == nullptr || bytes == 0) return false;
  const uint64_t offset = address - range->address;
  if (offset % range->page_bytes != 0 || bytes % range->page_bytes != 0) return false;
  run = {range, offset / range->page_bytes, bytes / range->page_bytes};
  return true;
}

const AddressRange* AddressSpace::After(uint64_t address) const {
  const auto next = ranges_.upper_bound(address);
  return next == ranges_.end() ? nullptr : &next->second;
}

void AddressSpace::Map(AddressRange& range, uint64_t index, uint64_t offset, PageIndex page) {
  const uint64_t before = range.table.mappings();
  range.table.Map(index, offset, page);
  Book(static_cast<int64_t>(range.table.mappings() - before));
}

void AddressSpace::Unmap(AddressRange& range, uint64_t index) {
  const uint64_t before = range.table.mappings();
  range.table.Unmap(index);
  Book(static_cast<int64_t>(range.table.mappings() - before));
}

}  // namespace vkv::host
