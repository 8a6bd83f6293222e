// DriverHost's calls on the bytes of mapped pages, and its streams and events. What these calls queue is always run:
// others than the engine rely on it.
#include <algorithm>
#include <cstring>

#include "host/driver_host.h"

namespace vkv {
namespace {

using host::AddressRange;

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

// A step writes a row to each of many pages that the CPU has not seen lately, one page after the other: it fetches
// where the next row goes while it copies this one. 64 rows of 4 KiB take 0.76 of the time. Stores that bypass the
// CPU's caches would take 0.5, but reading the rows, as a next stage does soon, takes longer then than they save.
constexpr uint64_t kFetchedBytes = 4096;
constexpr uint64_t kCacheLineBytes = 64;

void FetchAhead(const WritePiece& next) {
  for (uint64_t at = 0; at < std::min(next.bytes, kFetchedBytes); at += kCacheLineBytes)
    __builtin_prefetch(At(next.to + at), /*rw=*/1, /*locality=*/2);
}

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

// All pieces are checked before the first is copied: locks between the copies would keep the CPU from overlapping them.
Status DriverHost::WriteEach(std::span<const WritePiece> pieces) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  {
    std::lock_guard lock(mutex_);
    for (const WritePiece& piece : pieces) VKV_RETURN_IF_ERROR(CheckAccess("Write", piece.to, piece.bytes));
  }
  for (size_t k = 0; k < pieces.size(); ++k) {
    if (k + 1 < pieces.size()) FetchAhead(pieces[k + 1]);
    if (pieces[k].bytes != 0) std::memcpy(At(pieces[k].to), pieces[k].from, pieces[k].bytes);
  }
  return Ok();
}

Status DriverHost::ReadUntouched(void* to, uint64_t from, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  for (uint64_t done = 0; done < bytes;) {
    uint64_t offset = 0;
    uint64_t piece = bytes - done;
    {
      std::lock_guard lock(mutex_);
      VKV_RETURN_IF_ERROR(CheckAccess("Read", from + done, piece));
      const AddressRange* const range = space_.Find(from + done, piece);
      const uint64_t at = from + done - range->address;
      const uint64_t in_page = at % range->page_bytes;
      offset = range->table.At(at / range->page_bytes).offset + in_page;
      piece = std::min(piece, range->page_bytes - in_page);
    }
    auto* const target = static_cast<uint8_t*>(to) + done;
    if (!file_.Read(target, piece, offset)) std::memcpy(target, At(from + done), piece);
    done += piece;
  }
  return Ok();
}

// The CPU copies by itself: there is nothing to register memory for.
Status DriverHost::RegisterHost(uint64_t /*address*/, uint64_t /*bytes*/) { return CheckProcess(); }

Status DriverHost::UnregisterHost(uint64_t /*address*/) { return CheckProcess(); }

Status DriverHost::Download(void* to, uint64_t from, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(SynchronizeStream(stream));
  return Read(to, from, bytes);
}

Status DriverHost::Upload(uint64_t to, const void* from, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(SynchronizeStream(stream));
  return Write(to, from, bytes);
}

template <typename Command>
Status DriverHost::RunOn(const std::shared_ptr<HostStream>& stream, const Command& command) {
  if (!stream) return command({});
  stream->Queue<std::byte>(HostStream::Kind::kAlways, {}, command);
  return Ok();
}

Status DriverHost::Copy(uint64_t to, uint64_t from, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<HostStream> on;
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckStream("Copy", stream));
    VKV_RETURN_IF_ERROR(CheckAccess("Copy", from, bytes));
    VKV_RETURN_IF_ERROR(CheckAccess("Copy", to, bytes));
    if (to < from + bytes && from < to + bytes) return Misuse("Copy", to, bytes);
    on = StreamOf(stream);
  }
  if (bytes == 0) return Ok();
  return RunOn(on, [to, from, bytes](std::span<const std::byte>) {
    std::memcpy(At(to), At(from), bytes);
    return Ok();
  });
}

Status DriverHost::Fill(uint64_t to, uint8_t value, uint64_t bytes, Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<HostStream> on;
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckStream("Fill", stream));
    VKV_RETURN_IF_ERROR(CheckAccess("Fill", to, bytes));
    on = StreamOf(stream);
  }
  if (bytes == 0) return Ok();
  return RunOn(on, [to, value, bytes](std::span<const std::byte>) {
    std::memset(At(to), value, bytes);
    return Ok();
  });
}

Status DriverHost::CheckStream(const char* call, Stream stream) const {
  return stream == 0 || streams_.contains(stream) ? Ok() : Misuse(call, stream, 0);
}

std::shared_ptr<HostStream> DriverHost::StreamOf(Stream stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

std::shared_ptr<HostStream> DriverHost::FindStream(Stream stream) {
  if (guard_->is_forked()) return nullptr;
  std::lock_guard lock(mutex_);
  return StreamOf(stream);
}

std::vector<std::shared_ptr<HostStream>> DriverHost::AllStreams() {
  if (guard_->is_forked()) return {};  // their threads are the parent's
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<HostStream>> all;
  for (const auto& [stream, on] : streams_) all.push_back(on);
  return all;
}

void DriverHost::WaitForStreams() {
  for (const auto& stream : AllStreams()) stream->WaitForAll();
}

void DriverHost::StopStreams() {
  const auto all = AllStreams();
  for (const auto& stream : all) stream->RequestStop();  // all of them first: one may wait for another
  for (const auto& stream : all) stream->Stop();
}

Status DriverHost::CreateStream(Stream& stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  stream = ++last_handle_;
  streams_.emplace(stream, std::make_shared<HostStream>());
  return Ok();
}

// Events and waits of other streams may name it still, so it stays, without a thread, until the driver goes.
Status DriverHost::DestroyStream(Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<HostStream> ended;
  {
    std::lock_guard lock(mutex_);
    ended = StreamOf(stream);
    if (!ended) return Misuse("DestroyStream", stream, 0);
    streams_.erase(stream);
    ended_streams_.push_back(ended);
  }
  ended->WaitForAll();
  ended->Stop();
  return Ok();
}

Status DriverHost::SynchronizeStream(Stream stream) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::shared_ptr<HostStream> on;
  {
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckStream("SynchronizeStream", stream));
    on = StreamOf(stream);
  }
  if (on) on->WaitForAll();
  return Ok();
}

Status DriverHost::RecordEvent(Stream stream, Event& event) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  VKV_RETURN_IF_ERROR(CheckStream("RecordEvent", stream));
  event = ++last_handle_;
  std::shared_ptr<HostStream> on = StreamOf(stream);
  const uint64_t ticket = on ? on->queued() : 0;
  events_.emplace(event, Mark{std::move(on), ticket});
  return Ok();
}

Status DriverHost::FindMark(const char* call, Event event, Mark& mark) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return Misuse(call, event, 0);
  mark = found->second;
  return Ok();
}

Status DriverHost::QueryEvent(Event event, bool& is_done) {
  Mark mark;
  VKV_RETURN_IF_ERROR(FindMark("QueryEvent", event, mark));
  is_done = !mark.stream || mark.stream->IsDone(mark.ticket);
  return Ok();
}

Status DriverHost::SynchronizeEvent(Event event) {
  Mark mark;
  VKV_RETURN_IF_ERROR(FindMark("SynchronizeEvent", event, mark));
  if (mark.stream) mark.stream->Wait(mark.ticket);
  return Ok();
}

// The default stream waits here, since its work is done when a call returns; so does a stream whose event is its own's.
Status DriverHost::WaitEvent(Stream stream, Event event) {
  std::shared_ptr<HostStream> on;
  {
    VKV_RETURN_IF_ERROR(CheckProcess());
    std::lock_guard lock(mutex_);
    VKV_RETURN_IF_ERROR(CheckStream("WaitEvent", stream));
    on = StreamOf(stream);
  }
  Mark mark;
  VKV_RETURN_IF_ERROR(FindMark("WaitEvent", event, mark));
  if (!mark.stream || mark.stream == on || mark.stream->IsDone(mark.ticket)) return Ok();
  if (!on) {
    mark.stream->Wait(mark.ticket);
    return Ok();
  }
  return RunOn(on, [from = mark.stream.get(), ticket = mark.ticket](std::span<const std::byte>) {
    from->Wait(ticket);
    return Ok();
  });
}

Status DriverHost::DestroyEvent(Event event) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  return events_.erase(event) != 0 ? Ok() : Misuse("DestroyEvent", event, 0);
}

}  // namespace vkv
