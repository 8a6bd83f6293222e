#include "row_ranges.h"

#include <algorithm>

namespace vkv {

Status RowRanges::Open() {
  reservations_.reserve(layout_.reservations());
  for (size_t i = 0; i < layout_.reservations(); ++i) {
    Reservation reservation;
    const Status status =
        Reservation::Open(pool_.driver(), layout_.ReservationBytes(i), layout_.page_bytes(), reservation);
    if (!status.ok()) {
      reservations_.clear();
      return status;
    }
    reservations_.push_back(std::move(reservation));
  }
  return Ok();
}

Status RowRanges::OpenScratch() {
  if (!scratch_.empty()) return Ok();
  std::vector<Reservation> scratch(layout_.reservations());
  for (size_t i = 0; i < scratch.size(); ++i)
    VKV_RETURN_IF_ERROR(Reservation::Open(pool_.driver(), layout_.row_bytes(i), layout_.page_bytes(), scratch[i]));
  scratch_ = std::move(scratch);
  return Ok();
}

Status RowRanges::Close() {
  Status first;
  for (std::vector<Reservation>* reservations : {&reservations_, &scratch_}) {
    for (Reservation& reservation : *reservations) {
      const Status status = reservation.Close();
      if (!status.ok() && first.ok()) first = status;
    }
  }
  return first;
}

std::vector<PageId> RowRanges::ColumnPages(const RowRun& run, size_t reservation) const {
  std::vector<PageId> pages;
  const uint64_t width = layout_.row_pages(), count = layout_.row_pages(reservation);
  uint64_t at = 0;  // in a row
  for (size_t i = 0; i < reservation; ++i) at += layout_.row_pages(i);
  pages.reserve(static_cast<uint64_t>(run.to - run.from) * count);
  for (; at < run.pages.size(); at += width)
    pages.insert(pages.end(), run.pages.begin() + at, run.pages.begin() + at + count);
  return pages;
}

Status RowRanges::MapColumn(const RowRun& run, size_t reservation, std::vector<StrandedRun>& stranded) {
  std::vector<PageId> pages = ColumnPages(run, reservation);
  if (pages.empty()) return Ok();
  std::vector<PageHandle> handles(pages.size());
  pool_.Handles(pages, handles);
  const uint64_t offset = Offset(run.slot, run.from, reservation);
  uint64_t left_mapped = 0;
  const Status status = At(run.slot, reservation).MapRun(offset, handles, left_mapped);
  if (left_mapped > 0) {
    pages.resize(left_mapped);
    stranded.push_back({run.slot, reservation, offset, std::move(pages)});
  }
  return status;
}

Status RowRanges::UnmapColumn(const RowRun& run, size_t reservation) {
  const uint64_t pages = ColumnPages(run, reservation).size();
  if (pages == 0) return Ok();
  return At(run.slot, reservation).UnmapRun(Offset(run.slot, run.from, reservation), pages);
}

Status RowRanges::Map(const RowRun& run, std::vector<StrandedRun>& stranded) {
  for (size_t i = 0; i < layout_.reservations(); ++i) {
    const Status status = MapColumn(run, i, stranded);
    if (status.ok()) continue;
    Unwind(run, i, stranded);
    return status;
  }
  return Ok();
}

void RowRanges::Unwind(const RowRun& run, size_t reservations, std::vector<StrandedRun>& stranded) {
  for (size_t i = 0; i < reservations; ++i)
    if (!UnmapColumn(run, i).ok())
      stranded.push_back({run.slot, i, Offset(run.slot, run.from, i), ColumnPages(run, i)});
}

Status RowRanges::Unmap(const RowRun& run, std::vector<StrandedRun>& stranded) {
  for (size_t i = 0; i < layout_.reservations(); ++i) {
    const Status status = UnmapColumn(run, i);
    if (status.ok()) continue;
    const UndoScope undo(pool_.driver());
    for (size_t k = 0; k < i; ++k) {
      if (MapColumn(run, k, stranded).ok()) continue;
      // Reservations below k are mapped again, those from k to i-1 are not, those from i on still are: unmap the rest.
      Unwind(run, k, stranded);
      for (size_t rest = i; rest < layout_.reservations(); ++rest)
        if (!UnmapColumn(run, rest).ok())
          stranded.push_back({run.slot, rest, Offset(run.slot, run.from, rest), ColumnPages(run, rest)});
      if (stranded.empty()) return Ok();  // all of it is unmapped after all
      return status;
    }
    return status;
  }
  return Ok();
}

Status RowRanges::UnmapStranded(const StrandedRun& stranded) {
  return At(stranded.slot, stranded.reservation).UnmapRun(stranded.offset, stranded.pages.size());
}

}  // namespace vkv
