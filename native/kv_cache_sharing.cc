// The part of KvCache that shares rows between slots: keep, drop, alias, copy, detach.

#include <algorithm>

#include "kv_cache.h"

namespace vkv {

Status KvCache::Keep(std::span<const KeepCommand> commands) {
  const size_t width = layout().reservations();
  std::lock_guard lock(mutex_);
  for (const KeepCommand& command : commands) {
    const Slot& slot = slots_[command.slot];
    const int32_t from = command.group * group_rows_;
    const int32_t to = from + std::min(command.rows, group_rows_);
    if (to <= from || to > slot.rows) return Fail(Code::kInternal, "Keep", command.slot, command.group);
    kept_.Keep(command.id, std::span(slot.pages).subspan(from * width, (to - from) * width));
  }
  return Ok();
}

void KvCache::Drop(std::span<const int32_t> ids) {
  for (const int32_t id : ids) kept_.Drop(static_cast<RowId>(id));
}

Status KvCache::Alias(int32_t slot_index, int32_t from_group, std::span<const int32_t> ids) {
  const size_t width = layout().reservations();
  RowRun run;
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot_index));
    run = {slot_index, slots_[slot_index].rows, slots_[slot_index].rows, {}};
  }
  Status status;
  if (run.from != from_group * group_rows_) status = Fail(Code::kInternal, "Alias", slot_index, run.from);
  for (const int32_t id : ids) {
    if (!status.ok()) break;
    const std::span<const PageId> pages = kept_.pages(static_cast<RowId>(id));
    // Only the last group may lack rows, and each must be there.
    if (pages.empty() || run.to % group_rows_ != 0) status = Fail(Code::kInternal, "Alias", slot_index, id);
    if (!status.ok()) break;
    run.pages.insert(run.pages.end(), pages.begin(), pages.end());
    run.to += static_cast<int32_t>(pages.size() / width);
  }
  if (status.ok() && run.to > run.from) {
    pool_->Share(run.pages);
    std::vector<StrandedRun> stranded;
    {
      DriverScope scope(pool_->driver());
      status = scope.status();
      if (status.ok()) status = ranges_.Map(run, stranded);
    }
    if (!status.ok()) {
      if (status.code == Code::kDriverLost) stranded.clear();
      std::lock_guard lock(mutex_);
      Strand(std::move(stranded));
      pool_->Give(run.pages);
    }
  }
  std::lock_guard lock(mutex_);
  if (status.ok() && run.to > run.from) {
    Slot& slot = slots_[slot_index];
    pool_->Unpromise(PromisedPages(slot, run.from, run.to));
    const uint64_t pages = layout().PagesBetween(run.from, run.to);
    slot.pages.insert(slot.pages.end(), run.pages.begin(), run.pages.end());
    slot.rows = run.to;
    MarkChanged(slot_index);
    counters_.aliased_rows += run.to - run.from;
    counters_.alias_maps += pages;
    counters_.mapped_rows += run.to - run.from;
    counters_.mapped_pages += pages;
  }
  LetGo(slot_index);
  return status;
}

Status KvCache::CopyGroup(const CopyCommand& command) {
  if (command.from_slot >= 0) {
    DriverScope scope(pool_->driver());
    VKV_RETURN_IF_ERROR(scope.status());
    return CopyTokens(command.slot, command.from_slot, command.group, command.tokens, command.stream);
  }
  const std::span<const PageId> pages = kept_.pages(static_cast<RowId>(command.id));
  if (pages.empty()) return Fail(Code::kInternal, "CopyGroup", command.slot, command.id);
  const RowRun run{
      kScratchSlot, 0, static_cast<int32_t>(pages.size() / layout().reservations()), {pages.begin(), pages.end()}};
  return InScratch(run,
                   [&] { return CopyTokens(command.slot, kScratchSlot, command.group, command.tokens, std::nullopt); });
}

// Copies the group's tokens before `tokens`, counted from the start of a slot: on `queued` if it is given, else on the
// cache's own stream, until they are there. After a failure nothing of it is queued any more. One call per reservation.
// A token that the group shares with the one before has its first bytes there. The scratch slot has one group.
Status KvCache::CopyTokens(int32_t to_slot, int32_t from_slot, int32_t group, uint64_t tokens,
                           std::optional<Stream> queued) {
  Driver& driver = pool_->driver();
  Stream stream = 0;
  if (queued) {
    stream = *queued;
  } else {
    VKV_RETURN_IF_ERROR(OwnStream(stream));
  }
  const int32_t row = group * group_rows_;
  const int32_t to_row = to_slot == kScratchSlot ? 0 : row;
  const int32_t from_row = from_slot == kScratchSlot ? 0 : row;
  uint64_t copied = 0;
  Status status;
  for (size_t i = 0; i < layout().reservations(); ++i) {
    const uint64_t start = layout().PagesAfter(row, i) * layout().page_bytes();
    const uint64_t end = tokens * layout().token_bytes(i);
    if (end <= start) continue;
    status = driver.Copy(ranges_.RowAddress(to_slot, to_row, i), ranges_.RowAddress(from_slot, from_row, i),
                         end - start, stream);
    if (!status.ok()) break;
    copied += end - start;
  }
  if (!queued || !status.ok()) status = WaitFor(stream, status);
  VKV_RETURN_IF_ERROR(status);
  std::lock_guard lock(mutex_);
  counters_.copied_bytes += copied;
  return Ok();
}

// Unmaps what was left in the scratch slot.
Status KvCache::ClearScratch() {
  for (;;) {
    StrandedRun run;
    {
      std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(stranded_, kScratchSlot, &StrandedRun::slot);
      if (found == stranded_.end()) return Ok();
      run = *found;
    }
    VKV_RETURN_IF_ERROR(ranges_.UnmapStranded(run));
    std::lock_guard lock(mutex_);
    stranded_.erase(std::ranges::find(stranded_, kScratchSlot, &StrandedRun::slot));
    for (const PageId page : run.pages) pool_->Restore(page);
  }
}

// Calls `work` while the run is mapped in the scratch slot. What the driver then refuses to unmap waits there for the
// next time: the work is done.
template <typename Work>
Status KvCache::InScratch(const RowRun& run, Work work) {
  DriverScope scope(pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  VKV_RETURN_IF_ERROR(ranges_.OpenScratch());
  VKV_RETURN_IF_ERROR(ClearScratch());
  std::vector<StrandedRun> stranded;
  Status status = ranges_.Map(run, stranded);
  if (status.ok()) {
    status = work();
    ranges_.Unwind(run, layout().reservations(), stranded);
  }
  if (status.code == Code::kDriverLost) stranded.clear();
  std::lock_guard lock(mutex_);
  Strand(std::move(stranded));
  return status;
}

// Pre: locked.
RowRun KvCache::RunOf(int32_t slot, int32_t from, int32_t to) const {
  if (to <= from) return {slot, from, from, {}};
  const size_t width = layout().reservations();
  const std::vector<PageId>& pages = slots_[slot].pages;
  return {slot, from, to, {pages.begin() + from * width, pages.begin() + to * width}};
}

Status KvCache::Detach(const DetachCommand& command) {
  const size_t width = layout().reservations();
  const int32_t slot_index = command.slot;
  RowRun shared;
  Tenant tenant;
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot_index));
    const Slot& slot = slots_[slot_index];
    const int32_t first = command.group * group_rows_;
    const int32_t end = std::min(first + group_rows_, static_cast<int32_t>(layout().RowsFor(command.tokens)));
    shared = RunOf(slot_index, first, std::min(end, slot.rows));
    tenant = slot.tenant;
  }
  Status status;
  if (shared.to <= shared.from) status = Fail(Code::kInternal, "Detach", slot_index, command.group);
  RowRun fresh{slot_index, shared.from, shared.to, {}};
  if (status.ok()) status = TakePages(std::span(&fresh, 1), 0);
  bool is_swapped = false;
  if (status.ok()) {
    if (command.from_slot >= 0) {
      status = FillQueued(command, shared, fresh, tenant, is_swapped);
    } else {
      const RowRun scratch{kScratchSlot, 0, fresh.to - fresh.from, fresh.pages};
      status = InScratch(scratch, [&] {
        VKV_RETURN_IF_ERROR(Scrub(scratch, tenant));
        return CopyTokens(kScratchSlot, slot_index, command.group, command.tokens, std::nullopt);
      });
      if (status.ok()) status = Swap(shared, fresh, is_swapped);
    }
    pool_->Give(is_swapped ? shared.pages : fresh.pages);
  }
  std::lock_guard lock(mutex_);
  if (is_swapped) {
    std::copy(fresh.pages.begin(), fresh.pages.end(), slots_[slot_index].pages.begin() + fresh.from * width);
    counters_.detached_rows += fresh.to - fresh.from;
  }
  LetGo(slot_index);
  return status;
}

// Maps `fresh` where `shared` is, and queues the copy from another slot's addresses, which stay as they are.
Status KvCache::FillQueued(const DetachCommand& command, const RowRun& shared, const RowRun& fresh, Tenant tenant,
                           bool& is_swapped) {
  DriverScope scope(pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  VKV_RETURN_IF_ERROR(Swap(shared, fresh, is_swapped));
  Status status = Scrub(fresh, tenant);
  if (status.ok()) status = CopyTokens(command.slot, command.from_slot, command.group, command.tokens, command.stream);
  if (status.ok()) return status;
  SwapBack(shared, fresh);
  is_swapped = false;
  return status;
}

// Maps `fresh` where `shared` is. When that fails `shared` is mapped again; if even that fails the slot is out of
// service, and its rows from there on are gone.
Status KvCache::Swap(const RowRun& shared, const RowRun& fresh, bool& is_swapped) {
  DriverScope scope(pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  std::vector<StrandedRun> stranded;
  Status status = ranges_.Unmap(shared, stranded);
  bool is_lost = !stranded.empty();
  if (status.ok()) {
    status = ranges_.Map(fresh, stranded);
    is_swapped = status.ok();
    if (!status.ok()) is_lost = !stranded.empty() || !ranges_.Map(shared, stranded).ok();
  }
  if (is_lost) LoseRows(shared, std::move(stranded));
  return status;
}

// The same backwards. `fresh` does not hold what it should: it cannot stay, and when it does not go the rows are lost.
void KvCache::SwapBack(const RowRun& shared, const RowRun& fresh) {
  std::vector<StrandedRun> stranded;
  const Status status = ranges_.Unmap(fresh, stranded);
  if (status.ok() && ranges_.Map(shared, stranded).ok()) return;
  if (!status.ok() && stranded.empty()) ranges_.Unwind(fresh, layout().reservations(), stranded);
  LoseRows(shared, std::move(stranded));
}

// Pre: the slot is held, and of `run` only what `stranded` says is mapped. The slot is out of service, and its rows
// from there on are gone.
void KvCache::LoseRows(const RowRun& run, std::vector<StrandedRun> stranded) {
  RowRun behind;
  {
    std::lock_guard lock(mutex_);
    behind = RunOf(run.slot, run.to, slots_[run.slot].rows);
  }
  ranges_.Unwind(behind, layout().reservations(), stranded);
  if (pool_->driver().is_lost()) stranded.clear();
  std::lock_guard lock(mutex_);
  Strand(std::move(stranded));
  pool_->Give(run.pages);  // the slot's references
  pool_->Give(behind.pages);
  Slot& slot = slots_[run.slot];
  pool_->Unpromise(PromisedPages(slot, slot.rows, slot.promised_rows));
  slot.promised_rows = 0;
  if (!slot.is_quarantined) ++counters_.quarantined_slots;
  slot.is_quarantined = true;
  counters_.mapped_rows -= slot.rows - run.from;
  counters_.mapped_pages -= layout().PagesBetween(run.from, slot.rows);
  slot.pages.resize(run.from * layout().reservations());
  slot.rows = run.from;
  MarkChanged(run.slot);
}

}  // namespace vkv
