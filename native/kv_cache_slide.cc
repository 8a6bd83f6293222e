// Sliding: a KvCache's slot gives up its first rows, and their pages become the rows that it needs next.

#include <algorithm>

#include "kv_cache.h"

namespace vkv {

Status KvCache::Slide(std::span<const SlideCommand> commands) {
  DriverScope scope(pool_->driver());
  for (const SlideCommand& command : commands) {
    {
      Lock lock(mutex_);
      VKV_RETURN_IF_ERROR(Hold(lock, command.slot));
    }
    const Status status = SlideHeld(command, scope);
    std::lock_guard lock(mutex_);
    LetGo(command.slot);
    VKV_RETURN_IF_ERROR(status);
  }
  return Ok();
}

// Pre: the slot is held.
Status KvCache::SlideHeld(const SlideCommand& command, const DriverScope& scope) {
  int32_t first = command.first, end = command.first;
  RowRun behind;
  {
    std::lock_guard lock(mutex_);
    const Slot& slot = slots_[command.slot];
    if (slot.rows > slot.first) {
      first = std::max(first, slot.first);
      end = std::max(first, slot.rows);
    }
    behind = RunOf(command.slot, slot.first, std::min(first, slot.rows));
  }
  Status status;
  std::vector<StrandedRun> stranded;
  if (behind.to > behind.from) status = Unmap(behind, scope, stranded);
  if (!status.ok() && stranded.empty()) return status;  // all is as before
  RowRun ahead{command.slot, end, end, {}};
  if (status.ok()) HandOver(behind, command.rows, ahead);
  if (ahead.to > ahead.from) {
    status = scope.status().ok() ? ranges_.Map(ahead, stranded) : scope.status();
    if (status.code == Code::kDriverLost) stranded.clear();  // a lost device holds no mapping any more
  }
  if (!status.ok()) {
    behind.pages.insert(behind.pages.end(), ahead.pages.begin(), ahead.pages.end());
    ahead = {command.slot, end, end, {}};
  }

  std::lock_guard lock(mutex_);
  Strand(std::move(stranded));
  Slot& slot = slots_[command.slot];
  const uint64_t earmarked = EarmarkedPages(slot);
  if (slot.first != first) MarkChanged(command.slot);
  slot.pages.erase(slot.pages.begin(), slot.pages.begin() + IndexOf(slot, behind.to));
  slot.pages.insert(slot.pages.end(), ahead.pages.begin(), ahead.pages.end());
  slot.first = first;
  slot.rows = ahead.to;
  MoveEarmark(slot, earmarked, behind.pages);
  CountUnmapped(behind);
  counters_.slid_rows += behind.to - behind.from;
  counters_.handed_rows += ahead.to - ahead.from;
  counters_.mapped_rows += ahead.to - ahead.from;
  counters_.mapped_pages += ahead.pages.size();
  return status;
}

// Moves pages that the slot alone refers to from `behind` to `ahead`, as many rows before `to` as they reach.
void KvCache::HandOver(RowRun& behind, int32_t to, RowRun& ahead) const {
  const auto is_own = [this](PageId page) { return pool_->references(page) == 1; };
  const auto others = std::stable_partition(behind.pages.begin(), behind.pages.end(), is_own);
  const auto own = static_cast<uint64_t>(others - behind.pages.begin());
  const uint64_t rows = std::min<uint64_t>(std::max(0, to - ahead.to), own / layout().row_pages());
  const auto handed = behind.pages.begin() + static_cast<ptrdiff_t>(layout().PagesOf(rows));
  ahead.pages.assign(behind.pages.begin(), handed);
  ahead.to += static_cast<int32_t>(rows);
  behind.pages.erase(behind.pages.begin(), handed);
}

// Pre: locked; the slot has slid, and `earmarked` pages were set aside for it before. Gives back the pages that went.
void KvCache::MoveEarmark(Slot& slot, uint64_t earmarked, std::span<const PageId> pages) {
  if (slot.is_quarantined) slot.earmarked_rows = 0;
  uint64_t wanted = EarmarkedPages(slot);
  if (wanted > earmarked) {
    const auto is_last = [this](PageId page) { return pool_->references(page) == 1; };
    const uint64_t freed = std::ranges::count_if(pages, is_last);
    const uint64_t kept = std::min(wanted - earmarked, freed);
    pool_->RestoreEarmark(kept);  // first, so that no other thread takes these pages in between
    earmarked += kept;
  }
  if (!pages.empty()) pool_->Give(pages);
  if (wanted > earmarked && pool_->Earmark(wanted - earmarked).ok()) earmarked = wanted;
  for (; wanted > earmarked; wanted = EarmarkedPages(slot)) --slot.earmarked_rows;
  if (wanted < earmarked) pool_->DropEarmark(earmarked - wanted);
}

}  // namespace vkv
