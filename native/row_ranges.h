// RowRanges: the address ranges of one cache, in which it maps and unmaps whole rows of a slot, all reservations or
// none.
//
// It owns the reservations and knows the layout; it does not know which rows are mapped (kv_cache does) and takes no
// page from the pool. Beside the slots there is a scratch slot of one row, reserved when first needed, where
// pages are mapped that must be read or filled while they are in no slot. When the driver refuses an undo as well, what
// it left mapped is handed out as stranded runs. Threads: any, on different slots; calls are made inside a DriverScope.
#ifndef VKV_ROW_RANGES_H_
#define VKV_ROW_RANGES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "layout.h"
#include "page_pool.h"
#include "reservation.h"
#include "status.h"

namespace vkv {

// The slot number of the scratch.
inline constexpr int32_t kScratchSlot = -1;

// Rows [from, to) of a slot and their pages: row by row, in each those of the first reservation, then the second, ….
struct RowRun {
  int32_t slot = 0;
  int32_t from = 0;
  int32_t to = 0;
  std::vector<PageId> pages;
};

// Pages that are still mapped because the driver refused to unmap them.
struct StrandedRun {
  int32_t slot;
  size_t reservation;
  uint64_t offset;
  std::vector<PageId> pages;
};

class RowRanges {
 public:
  RowRanges(PagePool& pool, Layout layout) : pool_(pool), layout_(std::move(layout)) {}

  Status Open();         // on failure nothing stays reserved
  Status OpenScratch();  // idempotent; on failure nothing of it stays reserved
  Status Close();        // pre: nothing mapped; idempotent, retryable

  const Layout& layout() const { return layout_; }
  uint64_t address(size_t reservation) const { return reservations_[reservation].address(); }
  // Address of a row in a reservation.
  uint64_t RowAddress(int32_t slot, int32_t row, size_t reservation) const {
    return At(slot, reservation).address() + Offset(slot, row, reservation);
  }
  // Address of `run.pages[at]`.
  uint64_t PageAddress(const RowRun& run, uint64_t at) const {
    const auto row = static_cast<int32_t>(at / layout_.row_pages());
    at %= layout_.row_pages();
    size_t i = 0;
    for (; at >= layout_.row_pages(i); ++i) at -= layout_.row_pages(i);
    return RowAddress(run.slot, run.from + row, i) + at * layout_.page_bytes();
  }

  // Maps the run with access. On failure nothing of it is mapped except what `stranded` says.
  Status Map(const RowRun& run, std::vector<StrandedRun>& stranded);
  // Unmaps the run. On failure all of it is mapped as before; only if that could not be done, `stranded` is not empty
  // and names what is still mapped, the rest being unmapped.
  Status Unmap(const RowRun& run, std::vector<StrandedRun>& stranded);
  // Unmaps what it can of reservations [0, reservations) and hands out the rest.
  void Unwind(const RowRun& run, size_t reservations, std::vector<StrandedRun>& stranded);
  // Tries once more.
  Status UnmapStranded(const StrandedRun& stranded);

 private:
  const Reservation& At(int32_t slot, size_t reservation) const {
    return slot == kScratchSlot ? scratch_[reservation] : reservations_[reservation];
  }
  Reservation& At(int32_t slot, size_t reservation) {
    return slot == kScratchSlot ? scratch_[reservation] : reservations_[reservation];
  }
  uint64_t Offset(int32_t slot, int32_t row, size_t reservation) const {
    return layout_.RowOffset(slot == kScratchSlot ? 0 : slot, row, reservation);
  }
  Status MapColumn(const RowRun& run, size_t reservation, std::vector<StrandedRun>& stranded);
  Status UnmapColumn(const RowRun& run, size_t reservation);
  std::vector<PageId> ColumnPages(const RowRun& run, size_t reservation) const;

  PagePool& pool_;
  const Layout layout_;
  std::vector<Reservation> reservations_;
  std::vector<Reservation> scratch_;
};

}  // namespace vkv

#endif  // VKV_ROW_RANGES_H_
