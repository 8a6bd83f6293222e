// Growth of a KvCache: rows get pages, all of a batch or none, and what a failed undo leaves is put out of service.

#include <algorithm>

#include "kv_cache.h"

namespace vkv {

uint64_t KvCache::EarmarkedPages(const Slot& slot, int32_t to) const {
  return layout().PagesBetween(slot.rows, std::min<int64_t>(to, int64_t{slot.first} + slot.earmarked_rows));
}

Status KvCache::Earmark(int32_t slot_index, int32_t rows) {
  Lock lock(mutex_);
  Slot& slot = slots_[slot_index];
  let_go_.wait(lock, [&] { return !slot.is_busy; });
  const uint64_t before = EarmarkedPages(slot);
  const uint64_t after = layout().PagesBetween(slot.rows, int64_t{slot.first} + rows);
  if (after > before) {
    if (slot.is_quarantined) return Fail(Code::kSlotBusy, "quarantine", slot_index);
    VKV_RETURN_IF_ERROR(pool_->Earmark(after - before));
  }
  if (after < before) pool_->DropEarmark(before - after);
  slot.earmarked_rows = rows;
  return Ok();
}

Status KvCache::Grow(std::span<const GrowCommand> commands) {
  std::vector<RowRun> runs;
  runs.reserve(commands.size());
  Status status;
  {
    Lock lock(mutex_);
    for (const GrowCommand& command : commands) {
      // It would wait for itself.
      if (slots_[command.slot].is_busy && std::ranges::find(runs, command.slot, &RowRun::slot) != runs.end())
        status = Fail(Code::kInvalidArgument, "Grow", command.slot);
      else
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
  uint64_t earmarked = 0;
  {
    std::lock_guard lock(mutex_);
    for (const RowRun& run : runs) earmarked += EarmarkedPages(slots_[run.slot], run.to);
  }
  VKV_RETURN_IF_ERROR(TakePages(runs, earmarked));

  std::vector<StrandedRun> stranded;
  Status status;
  {
    DriverScope scope(pool_->driver());
    status = scope.status();
    size_t mapped = 0;
    for (; status.ok() && mapped < runs.size(); ++mapped) {
      status = ranges_.Map(runs[mapped], stranded);
      if (!status.ok()) break;
      Tenant tenant;
      {
        std::lock_guard lock(mutex_);
        tenant = slots_[runs[mapped].slot].tenant;
      }
      status = Scrub(runs[mapped], tenant);
    }
    if (!status.ok()) {
      for (size_t k = 0; k < mapped; ++k) ranges_.Unwind(runs[k], layout().reservations(), stranded);
    }
  }
  if (!status.ok()) {
    if (status.code == Code::kDriverLost) stranded.clear();  // a lost device holds no mapping any more
    GiveBack(runs, earmarked, std::move(stranded));
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
    const uint64_t pages = run.pages.size();
    (is_background ? counters_.background_rows : counters_.foreground_rows) += rows;
    (is_background ? counters_.background_maps : counters_.foreground_maps) += pages;
    counters_.mapped_rows += rows;
    counters_.mapped_pages += pages;
  }
  return Ok();
}

Status KvCache::TakePages(std::span<RowRun> runs, uint64_t earmarked) {
  std::vector<uint64_t> near;
  for (const RowRun& run : runs)
    for (int32_t row = run.from; row < run.to; ++row)
      for (size_t i = 0; i < layout().reservations(); ++i)
        for (uint64_t k = 0; k < layout().row_pages(i); ++k)
          near.push_back(ranges_.RowAddress(run.slot, row, i) + k * layout().page_bytes());
  std::vector<PageId> taken(near.size());
  VKV_RETURN_IF_ERROR(pool_->Take(earmarked, near, taken));
  auto next = taken.begin();
  for (RowRun& run : runs) {
    const auto end = next + static_cast<ptrdiff_t>(layout().PagesOf(run.to - run.from));
    run.pages.assign(next, end);
    next = end;
  }
  return Ok();
}

void KvCache::GiveBack(std::span<const RowRun> runs, uint64_t earmarked, std::vector<StrandedRun> stranded) {
  std::lock_guard lock(mutex_);
  Strand(std::move(stranded));
  pool_->RestoreEarmark(earmarked);  // first, so that no other thread takes these pages in between
  for (const RowRun& run : runs) pool_->Give(run.pages);
}

// Pre: locked. Keeps aside what the driver left mapped. One reference of each page stays with the stranded run.
void KvCache::Strand(std::vector<StrandedRun> stranded) {
  for (StrandedRun& run : stranded) {
    for (const PageId page : run.pages) pool_->Quarantine(page);
    if (run.slot != kScratchSlot) {
      Slot& slot = slots_[run.slot];
      if (!slot.is_quarantined) ++counters_.quarantined_slots;
      slot.is_quarantined = true;
      MarkChanged(run.slot);
    }
    stranded_.push_back(std::move(run));
  }
}

// Zeroes those pages of the run that held another tenant's content, and marks them as this one's. A page remembers
// whose it was, whatever cache of the pool gets it: where this cache does not scrub, its sequences are of no tenant,
// and what tenants of other caches left is zeroed all the same.
Status KvCache::Scrub(const RowRun& run, Tenant tenant) {
  if (!scrub_) {
    tenant = kUnknownTenant;
    if (!pool_->has_tenants()) {
      pool_->set_tenant(run.pages, tenant);  // for a cache of this pool that will scrub
      return Ok();
    }
  }
  Driver& driver = pool_->driver();
  uint64_t scrubbed = 0;
  Stream stream = 0;
  Status status;
  for (size_t k = 0; k < run.pages.size(); ++k) {
    const Tenant previous = pool_->tenant(run.pages[k]);
    if (previous == kCleanTenant || previous == tenant) continue;
    if (pool_->is_shared(run.pages[k])) status = Fail(Code::kInternal, "Scrub", run.slot, run.pages[k]);
    if (status.ok() && scrubbed == 0) status = OwnStream(stream);
    if (!status.ok()) break;
    const uint64_t address = ranges_.PageAddress(run, k);
    status = driver.Fill(address, 0, layout().page_bytes(), stream);
    if (!status.ok()) break;
    ++scrubbed;
  }
  if (scrubbed > 0) status = WaitFor(stream, status);
  if (!status.ok()) return status;
  pool_->set_tenant(run.pages, tenant);
  std::lock_guard lock(mutex_);
  counters_.scrubbed_pages += scrubbed;
  return Ok();
}

// The stream of what the cache waits for, made when first needed.
Status KvCache::OwnStream(Stream& stream) {
  std::lock_guard lock(stream_mutex_);
  if (!own_stream_) {
    Stream made = 0;
    if (pool_->driver().info().has_streams) VKV_RETURN_IF_ERROR(pool_->driver().CreateStream(made));
    own_stream_ = made;
  }
  stream = *own_stream_;
  return Ok();
}

// Waits for what is queued on `stream`; returns `status`, or what the wait said. After a failure it waits as well, and
// is not put off by one refusal: what was queued before may be unmapped next, and the device would not survive that.
Status KvCache::WaitFor(Stream stream, const Status& status) {
  const Status waited = pool_->driver().SynchronizeStream(stream);
  if (!waited.ok()) (void)pool_->driver().SynchronizeStream(stream);
  return status.ok() ? waited : status;
}

}  // namespace vkv
