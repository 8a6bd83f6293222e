// Kept rows of a KvCache, and how a slot gets them, with rows of its own and pages earmarked: all of it or nothing.

#include <algorithm>

#include "kv_cache.h"

namespace vkv {

Status KvCache::Keep(std::span<const KeepCommand> commands) {
  std::lock_guard lock(mutex_);
  for (const auto& [slot_index, row, id] : commands) {
    const Slot& slot = slots_[slot_index];
    if (id >= kMostRowIds || row < slot.first || row >= slot.rows)
      return Fail(Code::kInternal, "Keep", slot_index, row);
  }
  for (const auto& [slot_index, row, id] : commands) {
    const Slot& slot = slots_[slot_index];
    kept_.Keep(id, std::span(slot.pages).subspan(IndexOf(slot, row), layout().row_pages()));
  }
  return Ok();
}

void KvCache::Drop(std::span<const int32_t> ids) {
  for (const int32_t id : ids) kept_.Drop(static_cast<RowId>(id));
}

Status KvCache::Alias(int32_t slot, const KeptRun& kept) {
  int32_t earmarked_rows = 0;
  {
    std::lock_guard lock(mutex_);
    earmarked_rows = slots_[slot].earmarked_rows;
  }
  return Admit({slot, std::nullopt, kept, 0, earmarked_rows, std::nullopt});
}

Status KvCache::Admit(const AdmitCommand& command) {
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, command.slot));
  }
  RowRun shared;
  Status status = SharedRun(command.slot, command.kept, shared);
  if (status.ok()) status = AdmitHeld(command, shared);
  std::lock_guard lock(mutex_);
  LetGo(command.slot);
  return status;
}

Status KvCache::ShareRows(int32_t from_slot, int32_t slot_index, int32_t rows) {
  AdmitCommand command{slot_index, std::nullopt, {}, 0, 0, std::nullopt};
  RowRun shared;
  Status status;
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot_index));
    const Slot &from = slots_[from_slot], &slot = slots_[slot_index];
    if (slot.rows > slot.first || rows < from.first || rows > from.rows)
      status = Fail(Code::kInternal, "ShareRows", slot_index, rows);
    else
      shared = RunOf(from_slot, from.first, rows);
    shared.slot = slot_index;
    command.tenant = from.tenant;
    command.earmarked_rows = slot.earmarked_rows;
  }
  if (status.ok()) status = AdmitHeld(command, shared);
  std::lock_guard lock(mutex_);
  LetGo(slot_index);
  return status;
}

// Pages of kept rows, behind the slot's rows; an empty slot begins where they do. Pre: the slot is held.
Status KvCache::SharedRun(int32_t slot, const KeptRun& kept, RowRun& run) {
  {
    std::lock_guard lock(mutex_);
    const bool begins = slots_[slot].rows == slots_[slot].first && !kept.ids.empty();
    run.from = run.to = begins ? kept.from : slots_[slot].rows;
    run.slot = slot;
  }
  if (!kept.ids.empty() && run.from != kept.from) return Fail(Code::kInternal, "Alias", slot, run.from);
  run.pages.reserve(layout().PagesOf(kept.ids.size()));
  for (const int32_t id : kept.ids) {
    const std::span<const PageId> pages = kept_.pages(static_cast<RowId>(id));
    if (pages.empty()) return Fail(Code::kInternal, "Alias", slot, id);
    run.pages.insert(run.pages.end(), pages.begin(), pages.end());
    run.to += 1;
  }
  if (run.to > static_cast<int64_t>(layout().MaxRows())) return Fail(Code::kInternal, "Alias", slot, run.to);
  return Ok();
}

// Pre: the slot is held. First all pages (no driver call for those that are refused), then one run of mappings for the
// shared rows, where an empty slot begins, and its own, then what must be in them.
Status KvCache::AdmitHeld(const AdmitCommand& command, const RowRun& shared) {
  RowRun own{command.slot, shared.to, std::max(shared.to, command.rows), {}};
  uint64_t earmarked = 0;  // as of now
  int32_t first = 0;
  {
    std::lock_guard lock(mutex_);
    const Slot& slot = slots_[command.slot];
    earmarked = EarmarkedPages(slot);
    first = slot.rows == slot.first ? shared.from : slot.first;
  }
  const uint64_t taken = layout().PagesOf(own.to - own.from);
  const uint64_t needed = taken + layout().PagesBetween(own.to, int64_t{first} + command.earmarked_rows);
  const uint64_t more = needed > earmarked ? needed - earmarked : 0;
  VKV_RETURN_IF_ERROR(pool_->Earmark(more));
  Status status = TakePages(std::span(&own, 1), taken);
  if (!status.ok()) {
    pool_->DropEarmark(more);
    return status;
  }

  pool_->Share(shared.pages);
  RowRun run{command.slot, shared.from, own.to, shared.pages};
  run.pages.insert(run.pages.end(), own.pages.begin(), own.pages.end());
  std::vector<StrandedRun> stranded;
  if (command.tenant) status = AssignHeld(command.slot, *command.tenant);
  if (status.ok()) status = MapAndFill(command, run, own, stranded);
  if (!status.ok()) {
    if (status.code == Code::kDriverLost) stranded.clear();  // a lost device holds no mapping any more
    GiveBack(std::span(&run, 1), taken, std::move(stranded));
    pool_->DropEarmark(more);
    return status;
  }

  std::lock_guard lock(mutex_);
  Slot& slot = slots_[command.slot];
  pool_->DropEarmark(earmarked + more - needed);
  slot.earmarked_rows = command.earmarked_rows;
  if (run.to > run.from || slot.first != first) MarkChanged(command.slot);
  slot.first = first;
  slot.pages.insert(slot.pages.end(), run.pages.begin(), run.pages.end());
  slot.rows = run.to;
  const uint64_t aliased = shared.pages.size();
  counters_.aliased_rows += shared.to - shared.from;
  counters_.alias_maps += aliased;
  counters_.foreground_rows += own.to - own.from;
  counters_.foreground_maps += taken;
  counters_.mapped_rows += run.to - run.from;
  counters_.mapped_pages += aliased + taken;
  return Ok();
}

// Pre: the slot is held. On failure nothing of `run`, whose last rows are `own`, is mapped but what `stranded` says.
Status KvCache::MapAndFill(const AdmitCommand& command, const RowRun& run, const RowRun& own,
                           std::vector<StrandedRun>& stranded) {
  if (run.to == run.from && !command.copy) return Ok();
  Tenant tenant;
  {
    std::lock_guard lock(mutex_);
    tenant = slots_[command.slot].tenant;
  }
  DriverScope scope(pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  VKV_RETURN_IF_ERROR(ranges_.Map(run, stranded));
  Status status = Scrub(own, tenant);
  if (status.ok() && command.copy) status = CopyRow(*command.copy);
  if (!status.ok()) ranges_.Unwind(run, layout().reservations(), stranded);
  return status;
}

}  // namespace vkv
