// DriverHost's linear mappings of its page file, and those who hear of its pages.
#include <algorithm>
#include <cerrno>

#include "host/driver_host.h"

namespace vkv {

bool DriverHost::FindInFile(uint64_t address, uint64_t bytes, uint64_t& offset, uint64_t& run_bytes) {
  run_bytes = SharedRunBytes(address, bytes);
  if (run_bytes == 0) return false;
  std::lock_guard lock(mutex_);
  host::PageRun run;
  if (!space_.FindRun(address, bytes, run)) return false;
  offset = run.range->table.At(run.first).offset;
  return true;
}

Status DriverHost::MapLinear(uint64_t offset, uint64_t bytes, uint64_t& address) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckMappings(space_.mappings() + 1));
  }
  uint64_t start = 0;
  int error = calls_.Reserve(bytes, start);
  if (error != 0) return host::SystemError(Code::kOutOfAddressSpace, "mmap", error, bytes);
  guard_->Add(start, bytes);
  error = file_.Map(start, bytes, offset, /*populate=*/false);
  if (error != 0) {
    (void)guard_->Free(calls_, start, bytes);
    return host::SystemError(Code::kDriverCallFailed, "mmap", error, start, bytes);
  }
  host::ProcessMappings::Change(1);
  address = start;
  return Ok();
}

Status DriverHost::UnmapLinear(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  if (const int error = guard_->Free(calls_, address, bytes))
    return host::SystemError(Code::kDriverCallFailed, "munmap", error, address, bytes);
  host::ProcessMappings::Change(-1);
  return Ok();
}

void DriverHost::AddListener(const std::shared_ptr<host::PageListener>& listener) {
  if (guard_->is_forked()) return;  // no page is released here
  std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [](const auto& known) { return known.expired(); });
  listeners_.push_back(listener);
}

Status DriverHost::TellListeners(uint64_t offset, uint64_t bytes) {
  std::vector<std::shared_ptr<host::PageListener>> alive;
  {
    std::lock_guard lock(mutex_);
    for (const auto& known : listeners_)
      if (auto listener = known.lock()) alive.push_back(std::move(listener));
  }
  for (const auto& listener : alive) VKV_RETURN_IF_ERROR(listener->BeforeRelease(offset, bytes));
  return Ok();
}

}  // namespace vkv
