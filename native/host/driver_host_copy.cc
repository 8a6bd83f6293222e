// DriverHost's calls on the bytes of mapped pages, and its streams and events, which are always done.
#include <cstring>

#include "host/driver_host.h"

namespace vkv {
namespace {

using host::AddressRange;

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

Status DriverHost::CheckAccess(const char* call, uint64_t address, uint64_t bytes) {
  if (bytes == 0) return Ok();
  const AddressRange* const range = space_.Find(address, bytes);
  const Status refused = Fail(Code::kCopyOutOfRange, call, static_cast<int64_t>(address), static_cast<int64_t>(bytes));
  if (range == nullptr) return refused;
  const uint64_t first = (address - range->address) / range->page_bytes;
  const uint64_t last = (address - range->address + bytes - 1) / range->page_bytes;
  for (uint64_t index = first; index <= last; ++index) {
    const host::MappingTable::Entry& entry = range->table.At(index);
    if (!entry.is_accessible || entry.is_busy) return refused;
  }
  return Ok();
}

Status DriverHost::Write(uint64_t to, const void* from, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckAccess("Write", to, bytes));
  }
  if (bytes != 0) std::memcpy(At(to), from, bytes);
  return Ok();
}

Status DriverHost::Read(void* to, uint64_t from, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckAccess("Read", from, bytes));
  }
  if (bytes != 0) std::memcpy(to, At(from), bytes);
  return Ok();
}

Status DriverHost::Copy(uint64_t to, uint64_t from, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckStream("Copy", stream));
    VKV_RETURN_IF_ERROR(CheckAccess("Copy", from, bytes));
    VKV_RETURN_IF_ERROR(CheckAccess("Copy", to, bytes));
    if (to < from + bytes && from < to + bytes) return Misuse("Copy", to, bytes);
  }
  std::memcpy(At(to), At(from), bytes);
  return Ok();
}

Status DriverHost::Fill(uint64_t to, uint8_t value, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckStream("Fill", stream));
    VKV_RETURN_IF_ERROR(CheckAccess("Fill", to, bytes));
  }
  if (bytes != 0) std::memset(At(to), value, bytes);
  return Ok();
}

Status DriverHost::CheckStream(const char* call, Stream stream) const {
  return stream == 0 || streams_.contains(stream) ? Ok() : Misuse(call, stream, 0);
}

Status DriverHost::CreateStream(Stream& stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  stream = ++last_handle_;
  streams_.insert(stream);
  return Ok();
}

Status DriverHost::DestroyStream(Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  return streams_.erase(stream) != 0 ? Ok() : Misuse("DestroyStream", stream, 0);
}

Status DriverHost::SynchronizeStream(Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  return CheckStream("SynchronizeStream", stream);
}

Status DriverHost::RecordEvent(Stream stream, Event& event) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  VKV_RETURN_IF_ERROR(CheckStream("RecordEvent", stream));
  event = ++last_handle_;
  events_.insert(event);
  return Ok();
}

Status DriverHost::QueryEvent(Event event, bool& is_done) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  if (!events_.contains(event)) return Misuse("QueryEvent", event, 0);
  is_done = true;
  return Ok();
}

Status DriverHost::SynchronizeEvent(Event event) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  return events_.contains(event) ? Ok() : Misuse("SynchronizeEvent", event, 0);
}

Status DriverHost::WaitEvent(Stream stream, Event event) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  VKV_RETURN_IF_ERROR(CheckStream("WaitEvent", stream));
  return events_.contains(event) ? Ok() : Misuse("WaitEvent", event, 0);
}

Status DriverHost::DestroyEvent(Event event) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  return events_.erase(event) != 0 ? Ok() : Misuse("DestroyEvent", event, 0);
}

}  // namespace vkv
