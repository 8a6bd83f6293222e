// Detaching: a KvCache's slot gets pages of its own where it shares some, at the same addresses.

#include <algorithm>

#include "kv_cache.h"

namespace vkv {

// Pre: locked.
RowRun KvCache::RunOf(int32_t slot, int32_t from, int32_t to) const {
  if (to <= from) return {slot, from, from, {}};
  const Slot& of = slots_[slot];
  return {slot, from, to, {of.pages.begin() + IndexOf(of, from), of.pages.begin() + IndexOf(of, to)}};
}

Status KvCache::Detach(const DetachCommand& command) {
  const int32_t slot_index = command.slot;
  RowRun shared;
  Tenant tenant;
  {
    Lock lock(mutex_);
    VKV_RETURN_IF_ERROR(Hold(lock, slot_index));
    const Slot& slot = slots_[slot_index];
    const int32_t row = command.row;
    shared = RunOf(slot_index, row, row < slot.first || row >= slot.rows ? row : row + 1);
    tenant = slot.tenant;
  }
  Status status;
  if (shared.to <= shared.from) status = Fail(Code::kInternal, "Detach", slot_index, command.row);
  const bool is_own = std::ranges::none_of(shared.pages, [this](PageId page) { return pool_->is_shared(page); });
  if (status.ok() && is_own) {
    std::lock_guard lock(mutex_);
    LetGo(slot_index);
    return status;
  }
  RowRun fresh{slot_index, shared.from, shared.to, {}};
  if (status.ok()) status = TakePages(std::span(&fresh, 1), 0);
  bool is_swapped = false;
  if (status.ok()) {
    if (command.from_slot >= 0) {
      status = FillQueued(command, shared, fresh, tenant, is_swapped);
    } else {
      const RowRun scratch{kScratchSlot, 0, 1, fresh.pages};
      status = InScratch(scratch, [&] {
        VKV_RETURN_IF_ERROR(Scrub(scratch, tenant));
        return CopyTokens(kScratchSlot, slot_index, command.row, command.tokens, std::nullopt);
      });
      if (status.ok()) status = Swap(shared, fresh, is_swapped);
    }
    pool_->Give(is_swapped ? shared.pages : fresh.pages);
  }
  std::lock_guard lock(mutex_);
  if (is_swapped) {
    Slot& slot = slots_[slot_index];
    std::copy(fresh.pages.begin(), fresh.pages.end(), slot.pages.begin() + IndexOf(slot, fresh.from));
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
  if (status.ok()) status = CopyTokens(command.slot, command.from_slot, command.row, command.tokens, command.stream);
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
    const UndoScope undo(pool_->driver());
    if (!status.ok()) is_lost = !stranded.empty() || !ranges_.Map(shared, stranded).ok();
  }
  if (is_lost) LoseRows(shared, std::move(stranded));
  return status;
}

// The same backwards. `fresh` does not hold what it should: it cannot stay, and when it does not go the rows are lost.
void KvCache::SwapBack(const RowRun& shared, const RowRun& fresh) {
  const UndoScope undo(pool_->driver());
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
  pool_->DropEarmark(EarmarkedPages(slot));
  slot.earmarked_rows = 0;
  if (!slot.is_quarantined) ++counters_.quarantined_slots;
  slot.is_quarantined = true;
  counters_.mapped_rows -= slot.rows - run.from;
  counters_.mapped_pages -= layout().PagesOf(slot.rows - run.from);
  slot.pages.resize(IndexOf(slot, run.from));
  slot.rows = run.from;
  MarkChanged(run.slot);
}

}  // namespace vkv
