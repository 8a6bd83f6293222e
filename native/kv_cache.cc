#include "kv_cache.h"

#include <algorithm>

namespace vkv {

KvCache::KvCache(std::shared_ptr<PagePool> pool, Layout layout, bool scrub)
    : pool_(std::move(pool)),
      scrub_(scrub),
      ranges_(*pool_, std::move(layout)),
      group_rows_(static_cast<int32_t>(std::min(ranges_.layout().GroupRows(), ranges_.layout().MaxRows()))),
      kept_(*pool_),
      slots_(ranges_.layout().slots()) {
  changed_.reserve(slots_.size());
}

Status KvCache::Open(std::shared_ptr<PagePool> pool, Layout layout, bool scrub,
                     std::unique_ptr<KvCache>& cache) {
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
  counters.kept_groups = kept_.count();
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

uint64_t KvCache::PromisedPages(const Slot& slot, int32_t from, int32_t to) const {
  const int32_t end = std::min(to, slot.promised_rows);
  return end > from ? layout().PagesBetween(from, end) : 0;
}

Status KvCache::Grow(std::span<const GrowCommand> commands) {
  std::vector<RowRun> runs;
  runs.reserve(commands.size());
  Status status;
  {
    Lock lock(mutex_);
    for (const GrowCommand& command : commands) {
      status = Hold(lock, command.slot);
      if (!status.ok()) break;
      const int32_t rows = slots_[command.slot].rows;
      runs.push_back({command.slot, rows, std::max(rows, command.rows), {}});
    }
  }
  if (status.ok()) status = GrowHeld(runs, /*is_background=*/false);
  std::lock_guard lock(mutex_);
  for (const RowRun& run : runs) LetGo(run.slot);
  return status;
}

Status KvCache::GrowAhead(int32_t slot, int32_t rows, bool& is_done) {
  is_done = true;
  RowRun run;
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot));
    run = {slot, slots_[slot].rows, std::min(slots_[slot].rows + 1, rows), {}};
  }
  const Status status = run.to > run.from ? GrowHeld(std::span(&run, 1), /*is_background=*/true) : Ok();
  std::lock_guard lock(mutex_);
  is_done = slots_[slot].rows >= rows;
  LetGo(slot);
  return status;
}

// Pre: every slot of `runs` is held by this thread. First all pages (no address touched), then the mappings.
Status KvCache::GrowHeld(std::span<RowRun> runs, bool is_background) {
  uint64_t promised = 0;
  {
    std::lock_guard lock(mutex_);
    for (const RowRun& run : runs) promised += PromisedPages(slots_[run.slot], run.from, run.to);
  }
  VKV_RETURN_IF_ERROR(TakePages(runs, promised));

  std::vector<StrandedRun> stranded;
  Status status;
  {
    DriverScope scope(pool_->driver());
    status = scope.status();
    size_t mapped = 0;
    for (; status.ok() && mapped < runs.size(); ++mapped) {
      status = ranges_.Map(runs[mapped], stranded);
      if (!status.ok()) break;
      if (!scrub_) {
        pool_->set_tenant(runs[mapped].pages, kUnknownTenant);  // for a cache of this pool that does scrub
      } else {
        Tenant tenant;
        {
          std::lock_guard lock(mutex_);
          tenant = slots_[runs[mapped].slot].tenant;
        }
        status = Scrub(runs[mapped], tenant);
      }
    }
    if (!status.ok()) {
      for (size_t k = 0; k < mapped; ++k) ranges_.Unwind(runs[k], layout().reservations(), stranded);
    }
  }
  if (!status.ok()) {
    if (status.code == Code::kDriverLost) stranded.clear();  // a lost device holds no mapping any more
    GiveBack(runs, promised, std::move(stranded));
    return status;
  }

  std::lock_guard lock(mutex_);
  for (const RowRun& run : runs) {
    if (run.to == run.from) continue;
    Slot& slot = slots_[run.slot];
    slot.pages.insert(slot.pages.end(), run.pages.begin(), run.pages.end());
    slot.rows = run.to;
    MarkChanged(run.slot);
    const uint64_t rows = run.to - run.from;
    const uint64_t pages = layout().PagesBetween(run.from, run.to);
    (is_background ? counters_.background_rows : counters_.foreground_rows) += rows;
    (is_background ? counters_.background_maps : counters_.foreground_maps) += pages;
    counters_.mapped_rows += rows;
    counters_.mapped_pages += pages;
  }
  return Ok();
}

Status KvCache::TakePages(std::span<RowRun> runs, uint64_t promised) {
  const size_t width = layout().reservations();
  std::vector<uint64_t> near;
  for (RowRun& run : runs) {
    run.pages.assign((run.to - run.from) * width, kNoPage);
    for (int32_t row = run.from; row < run.to; ++row)
      for (size_t i = 0; i < width; ++i)
        if (layout().HasPage(row, i)) near.push_back(ranges_.RowAddress(run.slot, row, i));
  }
  std::vector<PageId> taken(near.size());
  VKV_RETURN_IF_ERROR(pool_->Take(promised, near, taken));
  size_t next = 0;
  for (RowRun& run : runs)
    for (size_t k = 0; k < run.pages.size(); ++k)
      if (layout().HasPage(run.from + k / width, k % width)) run.pages[k] = taken[next++];
  return Ok();
}

void KvCache::GiveBack(std::span<const RowRun> runs, uint64_t promised, std::vector<StrandedRun> stranded) {
  Strand(std::move(stranded));
  pool_->Repromise(promised);  // first, so that nobody takes these pages in between
  for (const RowRun& run : runs) pool_->Give(run.pages);
}

// Keeps aside what the driver left mapped. One reference of each page stays with the stranded run.
void KvCache::Strand(std::vector<StrandedRun> stranded) {
  std::lock_guard lock(mutex_);
  for (StrandedRun& run : stranded) {
    for (PageId page : run.pages) {
      pool_->Share(std::span(&page, 1));
      pool_->Quarantine(page);
    }
    if (run.slot != kScratchSlot) {
      Slot& slot = slots_[run.slot];
      if (!slot.is_quarantined) ++counters_.quarantined_slots;
      slot.is_quarantined = true;
      MarkChanged(run.slot);
    }
    stranded_.push_back(std::move(run));
  }
}

// Zeroes those pages of the run that held another tenant's content, and marks them as this one's.
Status KvCache::Scrub(const RowRun& run, Tenant tenant) {
  const size_t width = layout().reservations();
  Driver& driver = pool_->driver();
  uint64_t scrubbed = 0;
  for (size_t k = 0; k < run.pages.size(); ++k) {
    if (run.pages[k] == kNoPage) continue;
    const Tenant previous = pool_->tenant(run.pages[k]);
    if (previous == kCleanTenant || previous == tenant) continue;
    if (pool_->references(run.pages[k]) > 1) return Fail(Code::kInternal, "Scrub", run.slot, run.pages[k]);
    const uint64_t address = ranges_.RowAddress(run.slot, run.from + static_cast<int32_t>(k / width), k % width);
    VKV_RETURN_IF_ERROR(driver.Fill(address, 0, layout().page_bytes(), 0));
    ++scrubbed;
  }
  if (scrubbed > 0) VKV_RETURN_IF_ERROR(driver.SynchronizeStream(0));
  pool_->set_tenant(run.pages, tenant);
  std::lock_guard lock(mutex_);
  counters_.scrubbed_pages += scrubbed;
  return Ok();
}

Status KvCache::Assign(int32_t slot_index, Tenant tenant) {
  RowRun mapped;
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot_index));
    Slot& slot = slots_[slot_index];
    mapped = {slot_index, 0, slot.rows, slot.pages};
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
  LetGo(slot_index);
  return status;
}

Status KvCache::Promise(int32_t slot_index, int32_t rows) {
  Lock lock(mutex_);
  Slot& slot = slots_[slot_index];
  let_go_.wait(lock, [&] { return !slot.is_busy; });
  const uint64_t before = PromisedPages(slot, slot.rows, slot.promised_rows);
  const uint64_t after = rows > slot.rows ? layout().PagesBetween(slot.rows, rows) : 0;
  if (after > before) {
    if (slot.is_quarantined) return Fail(Code::kSlotBusy, "quarantine", slot_index);
    VKV_RETURN_IF_ERROR(pool_->Promise(after - before));
  }
  if (after < before) pool_->Unpromise(before - after);
  slot.promised_rows = rows;
  return Ok();
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

// Pre: the slot is held. After a failure that could not be undone the rows are gone from the slot, part of them stranded.
Status KvCache::UnmapHeld(int32_t slot_index, int32_t rows) {
  RowRun run;
  {
    std::lock_guard lock(mutex_);
    const Slot& slot = slots_[slot_index];
    rows = std::min(rows, slot.rows);
    const size_t first = rows * layout().reservations();
    run = {slot_index, rows, slot.rows, {slot.pages.begin() + first, slot.pages.end()}};
  }
  Status status;
  std::vector<StrandedRun> stranded;
  if (run.to > run.from) {
    DriverScope scope(pool_->driver());
    // A lost device holds no mapping any more: only the records are cleared.
    status = scope.status().ok() ? ranges_.Unmap(run, stranded) : scope.status();
    if (status.code == Code::kDriverLost) {
      stranded.clear();
      status = Ok();
    }
  }
  const bool is_gone = status.ok() || !stranded.empty();
  Strand(std::move(stranded));
  if (!is_gone) return status;

  pool_->Give(run.pages);
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[slot_index];
  pool_->Unpromise(PromisedPages(slot, slot.rows, slot.promised_rows));
  slot.promised_rows = 0;
  slot.pages.resize(rows * layout().reservations());
  slot.rows = rows;
  if (run.to > run.from) MarkChanged(slot_index);
  const uint64_t unmapped = layout().PagesBetween(run.from, run.to);
  counters_.unmapped_rows += run.to - run.from;
  counters_.unmaps += unmapped;
  counters_.mapped_rows -= run.to - run.from;
  counters_.mapped_pages -= unmapped;
  return status;
}

int32_t KvCache::Publish(std::span<int32_t> rows, std::span<uint8_t> quarantined) {
  std::lock_guard lock(mutex_);
  for (int32_t slot : changed_) {
    rows[slot] = slots_[slot].rows;
    quarantined[slot] = slots_[slot].is_quarantined ? 1 : 0;
    slots_[slot].has_changed = false;
  }
  const int32_t count = static_cast<int32_t>(changed_.size());
  changed_.clear();
  return count;
}

Status KvCache::Verify(uint64_t& pages_in_use) const {
  std::lock_guard lock(mutex_);
  uint64_t mapped_rows = 0, mapped_pages = 0;
  std::vector<PageId> uses;  // each page as often as it is referred to
  kept_.Collect(uses);
  for (const StrandedRun& run : stranded_) uses.insert(uses.end(), run.pages.begin(), run.pages.end());
  for (size_t k = 0; k < slots_.size(); ++k) {
    const Slot& slot = slots_[k];
    const size_t before = uses.size();
    for (const PageId page : slot.pages)
      if (page != kNoPage) uses.push_back(page);
    const uint64_t pages = uses.size() - before;
    if (slot.pages.size() != slot.rows * layout().reservations() || pages != layout().PagesBetween(0, slot.rows))
      return Fail(Code::kInternal, "pages of a slot", static_cast<int64_t>(k), static_cast<int64_t>(pages));
    mapped_rows += slot.rows;
    mapped_pages += pages;
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
  for (Slot& slot : slots_) slot.is_quarantined = false;
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
  VKV_RETURN_IF_ERROR(ranges_.Close());
  is_closed_ = true;
  return Ok();
}

}  // namespace vkv
