// Slots of a KvCache: opened, handed to tenants, shrunk, published, closed.

#include "kv_cache.h"

#include <algorithm>

namespace vkv {

KvCache::KvCache(std::shared_ptr<PagePool> pool, Layout layout, bool scrub)
    : pool_(std::move(pool)),
      scrub_(scrub),
      ranges_(*pool_, std::move(layout)),
      kept_(*pool_),
      slots_(ranges_.layout().slots()) {
  changed_.reserve(slots_.size());
  if (scrub_) pool_->BeginTenants();
}

Status KvCache::Open(std::shared_ptr<PagePool> pool, Layout layout, bool scrub, std::unique_ptr<KvCache>& cache) {
  std::unique_ptr<KvCache> opened(new KvCache(std::move(pool), std::move(layout), scrub));
  DriverScope scope(opened->pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  VKV_RETURN_IF_ERROR(opened->ranges_.Open());
  cache = std::move(opened);
  return Ok();
}

KvCache::~KvCache() { (void)Close(); }

CacheCounters KvCache::counters() const {
  std::lock_guard lock(mutex_);
  CacheCounters counters = counters_;
  counters.kept_rows = kept_.count();
  return counters;
}

Status KvCache::Hold(Lock& lock, int32_t slot) {
  let_go_.wait(lock, [&] { return !slots_[slot].is_busy; });
  if (slots_[slot].is_quarantined) return Fail(Code::kSlotBusy, "quarantine", slot);
  slots_[slot].is_busy = true;
  return Ok();
}

void KvCache::LetGo(int32_t slot) {
  slots_[slot].is_busy = false;
  let_go_.notify_all();
}

void KvCache::MarkChanged(int32_t slot) {
  if (slots_[slot].has_changed) return;
  slots_[slot].has_changed = true;
  changed_.push_back(slot);
}

Status KvCache::Assign(int32_t slot, Tenant tenant) {
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot));
  }
  const Status status = AssignHeld(slot, tenant);
  std::lock_guard lock(mutex_);
  LetGo(slot);
  return status;
}

// Pre: the slot is held.
Status KvCache::AssignHeld(int32_t slot_index, Tenant tenant) {
  RowRun mapped;
  {
    std::lock_guard lock(mutex_);
    const Slot& slot = slots_[slot_index];
    mapped = {slot_index, slot.first, slot.rows, slot.pages};
    if (!scrub_ || slot.tenant == tenant) mapped.pages.clear();
  }
  Status status;
  if (!mapped.pages.empty()) {
    DriverScope scope(pool_->driver());
    status = scope.status();
    if (status.ok()) status = Scrub(mapped, tenant);
  }
  std::lock_guard lock(mutex_);
  if (status.ok()) slots_[slot_index].tenant = tenant;
  return status;
}

Status KvCache::Shrink(int32_t slot, int32_t rows) {
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot));
  }
  const Status status = UnmapHeld(slot, rows);
  std::lock_guard lock(mutex_);
  LetGo(slot);
  return status;
}

// Pre: the slot is held. After a failure that could not be undone the rows are gone from the slot, part of them
// stranded.
Status KvCache::UnmapHeld(int32_t slot_index, int32_t rows) {
  RowRun run;
  {
    std::lock_guard lock(mutex_);
    const Slot& slot = slots_[slot_index];
    rows = std::min(rows, slot.rows);
    run = RunOf(slot_index, std::max(rows, slot.first), slot.rows);
  }
  Status status;
  std::vector<StrandedRun> stranded;
  if (run.to > run.from) {
    DriverScope scope(pool_->driver());
    status = Unmap(run, scope, stranded);
  }
  if (!status.ok() && stranded.empty()) return status;  // all is as before

  std::lock_guard lock(mutex_);
  Strand(std::move(stranded));
  pool_->Give(run.pages);
  Slot& slot = slots_[slot_index];
  pool_->DropEarmark(EarmarkedPages(slot));
  slot.earmarked_rows = 0;
  slot.pages.resize(slot.pages.size() - run.pages.size());
  if (slot.rows != rows) MarkChanged(slot_index);
  slot.rows = rows;
  slot.first = std::min(slot.first, rows);
  CountUnmapped(run);
  return status;
}

// A lost device holds no mapping any more: only the records are cleared.
Status KvCache::Unmap(const RowRun& run, const DriverScope& scope, std::vector<StrandedRun>& stranded) {
  const Status status = scope.status().ok() ? ranges_.Unmap(run, stranded) : scope.status();
  if (status.code != Code::kDriverLost) return status;
  stranded.clear();
  return Ok();
}

void KvCache::CountUnmapped(const RowRun& run) {
  const uint64_t rows = run.to - run.from, pages = layout().PagesOf(rows);
  counters_.unmapped_rows += rows;
  counters_.unmaps += pages;
  counters_.mapped_rows -= rows;
  counters_.mapped_pages -= pages;
}

void KvCache::Publish(std::span<int32_t> rows, std::span<uint8_t> quarantined, std::span<int32_t> first) {
  std::lock_guard lock(mutex_);
  for (int32_t slot : changed_) {
    rows[slot] = slots_[slot].rows;
    if (!first.empty()) first[slot] = slots_[slot].first;
    quarantined[slot] = slots_[slot].is_quarantined ? 1 : 0;
    slots_[slot].has_changed = false;
  }
  changed_.clear();
}

Status KvCache::Verify(uint64_t& pages_in_use) const {
  std::lock_guard lock(mutex_);
  uint64_t mapped_rows = 0, mapped_pages = 0;
  std::vector<PageId> uses;  // each page as often as it is referred to
  kept_.Collect(uses);
  for (const StrandedRun& run : stranded_) uses.insert(uses.end(), run.pages.begin(), run.pages.end());
  for (size_t k = 0; k < slots_.size(); ++k) {
    const Slot& slot = slots_[k];
    uses.insert(uses.end(), slot.pages.begin(), slot.pages.end());
    const auto rows = static_cast<uint64_t>(slot.rows - slot.first);
    if (slot.first < 0 || slot.first > slot.rows || slot.pages.size() != layout().PagesOf(rows))
      return Fail(Code::kInternal, "pages of a slot", static_cast<int64_t>(k), static_cast<int64_t>(slot.pages.size()));
    mapped_rows += rows;
    mapped_pages += slot.pages.size();
  }
  if (mapped_rows != counters_.mapped_rows || mapped_pages != counters_.mapped_pages)
    return Fail(Code::kInternal, "mapped pages", static_cast<int64_t>(mapped_pages),
                static_cast<int64_t>(counters_.mapped_pages));
  std::sort(uses.begin(), uses.end());
  pages_in_use = 0;
  for (size_t k = 0, next = 0; k < uses.size(); k = next) {
    while (next < uses.size() && uses[next] == uses[k]) ++next;
    if (!pool_->is_quarantined(uses[k])) ++pages_in_use;
    if (pool_->references(uses[k]) != next - k)
      return Fail(Code::kInternal, "references of a page", uses[k], static_cast<int64_t>(next - k));
  }
  return Ok();
}

Status KvCache::UnmapStranded() {
  std::lock_guard lock(mutex_);
  DriverScope scope(pool_->driver());
  if (!scope.status().ok() && scope.status().code != Code::kDriverLost) return scope.status();
  while (!stranded_.empty()) {
    const Status status = ranges_.UnmapStranded(stranded_.back());
    if (!status.ok() && status.code != Code::kDriverLost) return status;
    for (PageId page : stranded_.back().pages) pool_->Restore(page);
    stranded_.pop_back();
  }
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].is_quarantined) MarkChanged(static_cast<int32_t>(slot));
    slots_[slot].is_quarantined = false;
  }
  counters_.quarantined_slots = 0;
  return Ok();
}

Status KvCache::Close() {
  if (is_closed_) return Ok();
  VKV_RETURN_IF_ERROR(UnmapStranded());
  for (size_t slot = 0; slot < slots_.size(); ++slot) VKV_RETURN_IF_ERROR(Shrink(static_cast<int32_t>(slot), 0));
  DriverScope scope(pool_->driver());
  if (!scope.status().ok() && scope.status().code != Code::kDriverLost) return scope.status();
  kept_.DropAll();
  if (own_stream_ && *own_stream_ != 0) {
    const Status status = pool_->driver().DestroyStream(*own_stream_);
    if (!status.ok() && status.code != Code::kDriverLost) return status;
  }
  own_stream_.reset();
  VKV_RETURN_IF_ERROR(ranges_.Close());
  for (Slot& slot : slots_) slot.pages.shrink_to_fit();
  is_closed_ = true;
  return Ok();
}

}  // namespace vkv
