#include "host/mapping_table.h"

namespace vkv::host {

const MappingTable::Entry MappingTable::kUnmapped;

MappingTable::MappingTable(uint64_t pages, uint64_t page_bytes)
    : pages_(pages), page_bytes_(page_bytes), blocks_((pages + kBlockEntries - 1) / kBlockEntries) {}

uint64_t MappingTable::MappingsWith(uint64_t index, uint64_t offset) const {
  if (IsNextOfRun(index, offset)) return mappings_;
  Entry entry;
  entry.is_mapped = true;
  entry.offset = offset;
  return mappings_ + Boundaries(index, entry) - Boundaries(index, At(index));
}

void MappingTable::Map(uint64_t index, uint64_t offset, PageIndex page) {
  mappings_ = MappingsWith(index, offset);
  ++mapped_pages_;
  Entry& entry = Touch(index);
  entry.is_mapped = true;
  entry.offset = offset;
  entry.page = page;
}

void MappingTable::Unmap(uint64_t index) {
  Entry& entry = Touch(index);
  const uint64_t before = Boundaries(index, entry);
  entry.is_mapped = false;
  entry.is_accessible = false;
  mappings_ += Boundaries(index, entry) - before;
  --mapped_pages_;
}

}  // namespace vkv::host
