// Copies of rows within a KvCache and of tokens into it, and the scratch slot in which pages are read or filled that
// are in no slot.

#include <algorithm>

#include "kv_cache.h"
#include "pinned_arena.h"

namespace vkv {

Status KvCache::CopyRow(const CopyCommand& command) {
  if (command.from_slot >= 0) {
    DriverScope scope(pool_->driver());
    VKV_RETURN_IF_ERROR(scope.status());
    return CopyTokens(command.slot, command.from_slot, command.row, command.tokens, command.stream);
  }
  const std::span<const PageId> pages = kept_.pages(static_cast<RowId>(command.id));
  if (pages.empty()) return Fail(Code::kInternal, "CopyRow", command.slot, command.id);
  const RowRun run{kScratchSlot, 0, 1, {pages.begin(), pages.end()}};
  return InScratch(run,
                   [&] { return CopyTokens(command.slot, kScratchSlot, command.row, command.tokens, std::nullopt); });
}

// Copies the row's tokens before `tokens`, counted from the start of a slot: on `queued` if it is given, else on the
// cache's own stream, until they are there. After a failure nothing of it is queued any more. One call per reservation.
// A token that the row shares with the one before has its first bytes there. The scratch slot has one row.
Status KvCache::CopyTokens(int32_t to_slot, int32_t from_slot, int32_t row, uint64_t tokens,
                           std::optional<Stream> queued) {
  Driver& driver = pool_->driver();
  Stream stream = 0;
  if (queued) {
    stream = *queued;
  } else {
    VKV_RETURN_IF_ERROR(OwnStream(stream));
  }
  const int32_t to_row = to_slot == kScratchSlot ? 0 : row;
  const int32_t from_row = from_slot == kScratchSlot ? 0 : row;
  uint64_t copied = 0;
  Status status;
  for (size_t i = 0; i < layout().reservations(); ++i) {
    const uint64_t start = row * layout().row_bytes(i);
    const uint64_t end = std::min(tokens * layout().token_bytes(i), start + layout().row_bytes(i));
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

bool KvCache::HasTokens(const Slot& slot, uint64_t from, uint64_t to) const {
  const bool reaches_back = from == to || layout().RowOf(from) >= static_cast<uint64_t>(slot.first);
  return reaches_back && layout().RowsFor(to) <= static_cast<uint64_t>(slot.rows);
}

Status KvCache::CheckTokens(int32_t slot, uint64_t from, uint64_t to) const {
  std::lock_guard lock(mutex_);
  if (HasTokens(slots_[static_cast<size_t>(slot)], from, to)) return Ok();
  return Fail(Code::kInternal, "CheckTokens", slot, static_cast<int64_t>(to));
}

uint64_t KvCache::FirstByte(int32_t slot, size_t reservation) const {
  std::lock_guard lock(mutex_);
  return slots_[static_cast<size_t>(slot)].first * layout().row_bytes(reservation);
}

Status KvCache::CheckPut(const char* call, std::span<const PutCommand> commands, uint64_t source_bytes) const {
  const uint64_t token_bytes = layout().token_bytes(0);
  std::lock_guard lock(mutex_);
  for (const PutCommand& command : commands) {
    const auto from = static_cast<uint64_t>(command.from), to = from + static_cast<uint64_t>(command.tokens);
    const uint64_t source_end = static_cast<uint64_t>(command.at) + static_cast<uint64_t>(command.tokens);
    const Slot& slot = slots_[static_cast<size_t>(command.slot)];
    if (!HasTokens(slot, from, to) || source_end * token_bytes > source_bytes)
      return Fail(Code::kInternal, call, command.slot, command.tokens);
  }
  return Ok();
}

Status KvCache::Put(std::span<const PutCommand> commands, const void* source, uint64_t source_bytes) {
  VKV_RETURN_IF_ERROR(CheckPut("Put", commands, source_bytes));
  const uint64_t token_bytes = layout().token_bytes(0);
  DriverScope scope(pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  const auto* bytes = static_cast<const uint8_t*>(source);
  std::vector<WritePiece> pieces;
  pieces.reserve(commands.size());
  for (const PutCommand& command : commands) {
    const uint64_t to = ranges_.RowAddress(command.slot, 0, 0) + static_cast<uint64_t>(command.from) * token_bytes;
    const uint8_t* from = bytes + static_cast<uint64_t>(command.at) * token_bytes;
    pieces.push_back({to, from, static_cast<uint64_t>(command.tokens) * token_bytes});
  }
  return pool_->driver().WriteEach(pieces);
}

Status KvCache::Read(int32_t slot, size_t reservation, uint64_t offset, std::span<uint8_t> to) {
  DriverScope scope(pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  return pool_->driver().ReadUntouched(to.data(), ranges_.RowAddress(slot, 0, reservation) + offset, to.size());
}

Status KvCache::Fetch(std::span<const PutCommand> commands, const FetchSource& source) {
  VKV_RETURN_IF_ERROR(CheckPut("Fetch", commands, source.bytes));
  const uint64_t token_bytes = layout().token_bytes(0);
  DriverScope scope(pool_->driver());
  VKV_RETURN_IF_ERROR(scope.status());
  DriverScope source_scope(*source.driver);
  VKV_RETURN_IF_ERROR(source_scope.status());
  const auto rows_of = [&](const PutCommand& command) {
    const uint64_t to = ranges_.RowAddress(command.slot, 0, 0) + static_cast<uint64_t>(command.from) * token_bytes;
    return PinnedArena::Run{to, static_cast<uint64_t>(command.at) * token_bytes,
                            static_cast<uint64_t>(command.tokens) * token_bytes};
  };
  if (source.arena != nullptr) {
    std::vector<PinnedArena::Run> runs;
    runs.reserve(commands.size());
    for (const PutCommand& command : commands) runs.push_back(rows_of(command));
    return source.arena->Copy(source.address, runs, layout().page_bytes(), source.stream);
  }
  for (const PutCommand& command : commands) {
    const PinnedArena::Run run = rows_of(command);
    VKV_RETURN_IF_ERROR(FetchOne(run.to, source.address + run.from, run.bytes, source));
  }
  return Ok();
}

// Without an arena: to the slot's own addresses.
Status KvCache::FetchOne(uint64_t to, uint64_t from, uint64_t bytes, const FetchSource& source) {
  Driver& driver = *source.driver;
  if (&driver != &pool_->driver()) return driver.Download(reinterpret_cast<void*>(to), from, bytes, source.stream);
  VKV_RETURN_IF_ERROR(driver.Copy(to, from, bytes, source.stream));
  return driver.info().has_streams ? Ok() : driver.SynchronizeStream(source.stream);
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
Status KvCache::InScratch(const RowRun& run, const std::function<Status()>& work) {
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

}  // namespace vkv
