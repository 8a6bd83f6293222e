// DriverHost's calls that map: Map books, SetAccess and Unmap make the system calls. A page is busy while a system call
// on it runs without the lock, until the outcome is booked; any other call on it in between is misuse.
#include <cerrno>
#include <vector>

#include "host/driver_host.h"

namespace vkv {
namespace {

using host::MappingTable;
using host::PageRun;
using host::SystemError;

// Pages side by side in the address space and in the file: one system call.
struct Piece {
  uint64_t first;
  uint64_t pages;
  uint64_t offset;
  bool is_new;  // its pages are mapped nowhere else
  bool is_accessible;
};

void SetBusy(const PageRun& run, bool value) {
  for (uint64_t index = run.first; index < run.end(); ++index) run.range->table.set_busy(index, value);
}

bool IsMappedAndIdle(const PageRun& run) {
  for (uint64_t index = run.first; index < run.end(); ++index) {
    const MappingTable::Entry& entry = run.range->table.At(index);
    if (!entry.is_mapped || entry.is_busy) return false;
  }
  return true;
}

// The parts of a mapped run that have no access yet.
std::vector<Piece> PiecesWithoutAccess(const PageRun& run, host::PageTable& pages) {
  const uint64_t page_bytes = run.range->page_bytes;
  std::vector<Piece> pieces;
  for (uint64_t index = run.first; index < run.end(); ++index) {
    const MappingTable::Entry& entry = run.range->table.At(index);
    if (entry.is_accessible) continue;
    const bool is_new = pages.At(entry.page).maps == 1;
    if (!pieces.empty()) {
      Piece& last = pieces.back();
      if (last.first + last.pages == index && last.offset + last.pages * page_bytes == entry.offset &&
          last.is_new == is_new) {
        ++last.pages;
        continue;
      }
    }
    pieces.push_back({index, 1, entry.offset, is_new, false});
  }
  return pieces;
}

}  // namespace

Status DriverHost::Map(uint64_t address, uint64_t page_bytes, PageHandle handle) {
  uint64_t mapped = 0;
  return MapEach(address, page_bytes, {&handle, 1}, mapped);
}

// A long cached text is hundreds of pages: one lock and one look-up of the place for all of them.
Status DriverHost::MapEach(uint64_t address, uint64_t page_bytes, std::span<const PageHandle> pages, uint64_t& mapped) {
  mapped = 0;
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  PageRun run;
  const bool has_place = space_.FindRun(address, pages.size() * page_bytes, run) && run.pages == pages.size();
  if (!has_place) return pages.empty() ? Ok() : Misuse("Map", address, page_bytes);
  for (; mapped < pages.size(); ++mapped) VKV_RETURN_IF_ERROR(MapLocked(*run.range, run.first + mapped, pages[mapped]));
  return Ok();
}

Status DriverHost::MapLocked(host::AddressRange& range, uint64_t index, PageHandle handle) {
  host::Page* const page = pages_.Find(handle);
  const bool has_page = page != nullptr && page->bytes == range.page_bytes;
  if (!has_page || range.table.At(index).is_mapped)
    return Misuse("Map", range.address + index * range.page_bytes, range.page_bytes);
  VKV_RETURN_IF_ERROR(CheckMappings(space_.MappingsWith(range, index, page->offset)));
  space_.Map(range, index, page->offset, host::PageTable::IndexOf(handle));
  ++page->maps;
  return Ok();
}

Status DriverHost::SetAccess(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  PageRun run;
  std::vector<Piece> pieces;
  {
    std::lock_guard lock(mutex_);
    if (!space_.FindRun(address, bytes, run) || !IsMappedAndIdle(run)) return Misuse("SetAccess", address, bytes);
    pieces = PiecesWithoutAccess(run, pages_);
    if (pieces.empty()) return Ok();
    SetBusy(run, true);
  }

  const uint64_t page_bytes = run.range->page_bytes;
  const auto address_of = [&](const Piece& piece) { return run.range->address + piece.first * page_bytes; };
  int error = 0;
  for (Piece& piece : pieces) {
    // Pages that were mapped before have been touched: a new mapping of all of them would cost more than the few faults
    // of what is read of them.
    error = file_.Map(address_of(piece), piece.pages * page_bytes, piece.offset, populate_ && piece.is_new);
    if (error != 0) break;
    piece.is_accessible = true;
  }
  for (Piece& piece : pieces) {
    if (error == 0 || !piece.is_accessible) continue;
    // Pages that cannot be undone stay accessible, and are booked as such.
    piece.is_accessible = calls_.Unmap(address_of(piece), piece.pages * page_bytes) != 0;
  }

  std::lock_guard lock(mutex_);
  SetBusy(run, false);
  for (const Piece& piece : pieces) {
    if (!piece.is_accessible) continue;
    for (uint64_t page = 0; page < piece.pages; ++page) run.range->table.set_accessible(piece.first + page, true);
  }
  if (error == 0) return Ok();
  // A shared mapping over reserved addresses can fail only for want of mappings: the rest of the process has more than
  // its half.
  if (error == ENOMEM) {
    Status status = SystemError(Code::kOutOfMappings, "mmap", error, space_.mappings(), kernel_mapping_limit_);
    status.others = static_cast<int64_t>(host::ProcessMappings::in_use() - space_.mappings());
    return status;
  }
  return SystemError(Code::kDriverCallFailed, "mmap", error, address, bytes);
}

uint64_t DriverHost::SharedRunBytes(uint64_t address, uint64_t bytes) {
  if (guard_->is_forked()) return 0;
  std::lock_guard lock(mutex_);
  PageRun run;
  if (!space_.FindRun(address, bytes, run) || !IsMappedAndIdle(run)) return 0;
  const uint64_t offset = run.range->table.At(run.first).offset;
  uint64_t pages = 1;
  while (pages < run.pages && run.range->table.At(run.first + pages).offset == offset + pages * run.range->page_bytes)
    ++pages;
  return pages * run.range->page_bytes;
}

Status DriverHost::Unmap(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  PageRun run;
  bool has_access = false;
  {
    std::lock_guard lock(mutex_);
    if (!space_.FindRun(address, bytes, run) || !IsMappedAndIdle(run)) return Misuse("Unmap", address, bytes);
    for (uint64_t index = run.first; index < run.end(); ++index) has_access |= run.range->table.At(index).is_accessible;
    SetBusy(run, true);
  }
  const int error = has_access ? calls_.Unmap(address, bytes) : 0;
  std::lock_guard lock(mutex_);
  SetBusy(run, false);
  if (error != 0) return SystemError(Code::kDriverCallFailed, "mmap", error, address, bytes);
  for (uint64_t index = run.first; index < run.end(); ++index) {
    --pages_.At(run.range->table.At(index).page).maps;
    space_.Unmap(*run.range, index);
  }
  return Ok();
}

}  // namespace vkv
