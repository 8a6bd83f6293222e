#include "store/segment_log.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>

#include "crc32c.h"
#include "store/segment_name.h"

namespace vkv::store {
namespace {

// Kept back at the end of each segment for lists of removals.
uint64_t RemovalRoom(uint64_t segment_bytes) { return std::max<uint64_t>(kBlockBytes, ToBlocks(segment_bytes / 64)); }

uint64_t FooterBytes(uint64_t entries_bytes) { return ToBlocks(entries_bytes) + kBlockBytes; }

// A list of removals makes do with a small file where the disk has no room for a whole one.
constexpr uint64_t kSmallSegmentBytes = 64 << 10;

bool IsWantOfSpace(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

}  // namespace

uint64_t SegmentLog::LargestRecord(uint64_t segment_bytes, uint64_t header_bytes) {
  const uint64_t taken = kBlockBytes + RemovalRoom(segment_bytes) + FooterBytes(FooterEntryBytes(header_bytes));
  return segment_bytes > taken ? segment_bytes - taken : 0;
}

Outcome SegmentLog::Reserve(uint64_t bytes, uint64_t header_bytes, RoomFor purpose, Room& room) {
  const uint64_t entry_bytes = FooterEntryBytes(header_bytes);
  std::lock_guard lock(mutex_);
  for (int attempt = 0;; ++attempt) {
    if (open_) {
      std::lock_guard index_lock(context_.index.mutex());
      const uint64_t kept_back = purpose == RoomFor::kRemovals ? 0 : RemovalRoom(open_->file_bytes);
      const bool fits =
          open_->tail + bytes + FooterBytes(open_->footer_room + entry_bytes) + kept_back <= open_->file_bytes;
      const bool takes_it = purpose == RoomFor::kRemovals || !open_->is_for_removals;
      if (open_->state == SegmentState::kOpen && takes_it && fits) {
        room = {open_, open_->tail, bytes};
        open_->tail += bytes;
        open_->footer_room += entry_bytes;
        ++open_->writers;
        return Outcome::kDone;
      }
    }
    if (attempt > 0) return Outcome::kFailed;  // too large for any
    std::shared_ptr<Segment> made;
    const Outcome outcome = Create(purpose, bytes + entry_bytes + 3 * kBlockBytes, made);
    if (outcome != Outcome::kDone) return outcome;
    if (open_) Retire(open_);
    open_ = std::move(made);
  }
}

void SegmentLog::Retire(const std::shared_ptr<Segment>& segment) {
  bool is_last = false;
  {
    std::lock_guard lock(context_.index.mutex());
    if (segment->state == SegmentState::kOpen) segment->state = SegmentState::kFull;
    is_last = segment->state == SegmentState::kFull && segment->writers == 0 && !segment->is_sealing;
    if (is_last) segment->is_sealing = true;
  }
  if (is_last) Seal(*segment);
}

void SegmentLog::Release(const Room& room) {
  bool is_last = false;
  Segment& segment = *room.segment;
  {
    std::lock_guard lock(context_.index.mutex());
    is_last = --segment.writers == 0 && segment.state == SegmentState::kFull && !segment.is_sealing;
    if (is_last) segment.is_sealing = true;
  }
  if (is_last) Seal(segment);
}

void SegmentLog::GiveBack(const Room& room) {
  bool is_last_room = false;
  {
    std::lock_guard lock(context_.index.mutex());
    is_last_room = room.segment->tail == room.offset + room.bytes;
    if (is_last_room) room.segment->tail = room.offset;
  }
  if (!is_last_room) context_.index.AddHole(*room.segment, room.offset, room.bytes);
}

int SegmentLog::Write(const Room& room, uint64_t offset, const void* data, uint64_t bytes) {
  const int error = room.segment->file->Write(data, bytes, room.offset + offset);
  return error == 0 ? 0 : context_.Failed("pwrite", error, context_.counters.failed_writes);
}

Outcome SegmentLog::Create(RoomFor purpose, uint64_t needed_bytes, std::shared_ptr<Segment>& segment) {
  const uint64_t bytes = context_.options.segment_bytes, limit = context_.options.limit_bytes;
  const bool is_removals = purpose == RoomFor::kRemovals;
  if (!IsWithinLimit(purpose == RoomFor::kRecord ? 2 * bytes : bytes)) {
    if (purpose == RoomFor::kRecord) return Outcome::kFull;
    if (purpose == RoomFor::kCopy) {
      // What is left of the limit will do: a segment that is emptied is shorter than a new one.
      const uint64_t left = limit - std::min(limit, context_.index.FileBytes());
      const uint64_t whole = left / kBlockBytes * kBlockBytes;
      const uint64_t least = ToBlocks(needed_bytes) + kBlockBytes + RemovalRoom(bytes);
      return whole < least ? Outcome::kFull : CreateOf(whole, segment);
    }
  } else {
    const Outcome outcome = CreateOf(bytes, segment);
    if (outcome != Outcome::kNoSpace || !is_removals) return outcome;
  }
  const Outcome outcome = CreateOf(std::min(bytes, std::max(kSmallSegmentBytes, ToBlocks(needed_bytes))), segment);
  if (outcome == Outcome::kDone) segment->is_for_removals = true;
  return outcome;
}

Outcome SegmentLog::CreateOf(uint64_t bytes, std::shared_ptr<Segment>& segment) {
  Epoch epoch;
  if (const int error = context_.calls.Random(epoch.bytes.data(), epoch.bytes.size())) {
    context_.Failed("getrandom", error, context_.counters.failed_writes);
    return Outcome::kFailed;
  }
  if (next_number_ == 0) {
    const auto all = context_.index.Segments();
    next_number_ = all.empty() ? 1 : all.back()->number + 1;
  }
  const uint64_t number = next_number_++;
  const std::string path = context_.folder + "/" + SegmentName(epoch, number);
  std::unique_ptr<BlockFile> file;
  const char* call = "open";
  bool direct = context_.can_direct;
  int error = BlockFile::Open(context_.calls, path, O_RDWR | O_CREAT | O_EXCL, direct, file);
  if (!direct) context_.can_direct = false;
  context_.calls.Pass("segment-made");
  if (error == 0) {
    call = "fallocate";
    error = file->Allocate(bytes);
    if (error == EOPNOTSUPP || error == ENOSYS) {
      context_.can_allocate = false;
      call = "ftruncate";
      error = file->Truncate(bytes);
    }
  }
  AlignedBuffer block(kBlockBytes);
  if (error == 0 && block.bytes() == 0) error = ENOMEM;
  if (error == 0) {
    call = "pwrite";
    WriteSegmentHeader({epoch, context_.options.name_space, number}, block.data());
    error = file->Write(block.data(), kBlockBytes, 0);
    context_.calls.Pass("segment-header-written");
  }
  folder_changes_.Note();
  if (error == 0 && context_.options.durability != Durability::kNone) {
    call = "fdatasync";
    error = file->Sync();
    context_.calls.Pass("segment-header-synced");
    if (error == 0) {
      call = "fsync";
      error = context_.calls.SyncFolder(context_.folder);
      context_.calls.Pass("segment-folder-synced");
    }
  }
  if (error != 0) {
    context_.Failed(call, error, context_.counters.failed_writes);
    if (file) (void)context_.calls.Unlink(path);  // where it stays, the next start finds a segment without records
    return IsWantOfSpace(error) ? Outcome::kNoSpace : Outcome::kFailed;
  }
  segment = std::make_shared<Segment>(epoch, number, std::move(file), bytes);
  context_.index.AddSegment(segment);
  return Outcome::kDone;
}

Outcome SegmentLog::Sync(Segment& segment) {
  uint64_t wanted = 0;
  {
    std::lock_guard lock(context_.index.mutex());
    wanted = segment.ticket;
  }
  std::lock_guard sync_lock(segment.sync_mutex);
  uint64_t ticket = 0;
  {
    std::lock_guard lock(context_.index.mutex());
    if (segment.synced_ticket >= wanted) return Outcome::kDone;
    if (segment.state == SegmentState::kFailed) return Outcome::kFailed;
    ticket = segment.ticket;
  }
  ++context_.counters.syncs;
  if (const int error = segment.file->Sync()) {
    // The kernel may have marked the lost pages as clean: another try would succeed and mean nothing.
    context_.Failed("fdatasync", error, context_.counters.failed_syncs);
    context_.index.DropUnsynced(segment);
    return Outcome::kFailed;
  }
  std::lock_guard lock(context_.index.mutex());
  segment.synced_ticket = ticket;
  return Outcome::kDone;
}

Outcome SegmentLog::SyncPayloads(Segment& segment) {
  {
    std::lock_guard lock(context_.index.mutex());
    ++segment.ticket;  // payloads alone are no write that is over
  }
  return Sync(segment);
}

Outcome SegmentLog::SyncAll() {
  context_.counters.unsynced_bytes = 0;
  Outcome outcome = Outcome::kDone;
  for (const std::shared_ptr<Segment>& segment : context_.index.Segments()) {
    bool is_dirty = false;
    {
      std::lock_guard lock(context_.index.mutex());
      is_dirty = segment->ticket > segment->synced_ticket && segment->state != SegmentState::kFailed;
    }
    if (is_dirty && Sync(*segment) != Outcome::kDone) outcome = Outcome::kFailed;
  }
  if (folder_changes_.HasUncovered()) {
    const uint64_t noted = folder_changes_.noted();  // the call does not cover files that are made during it
    const int error = context_.calls.SyncFolder(context_.folder);
    if (error == 0) {
      folder_changes_.Cover(noted);
    } else {  // the next call tries again
      context_.Failed("fsync", error, context_.counters.failed_syncs);
      outcome = Outcome::kFailed;
    }
  }
  return outcome;
}

bool SegmentLog::IsWithinLimit(uint64_t more_bytes) {
  return context_.index.FileBytes() + more_bytes <= context_.options.limit_bytes;
}

bool SegmentLog::HasRoomForSegment() { return IsWithinLimit(2 * context_.options.segment_bytes); }

void SegmentLog::Finish() {
  std::lock_guard lock(mutex_);
  if (open_) Retire(open_);
  open_.reset();
}

void SegmentLog::Seal(Segment& segment) {
  const bool is_written = WriteFooter(segment);
  std::lock_guard lock(context_.index.mutex());
  segment.is_sealing = false;
  if (!is_written || segment.state != SegmentState::kFull) return;
  segment.state = SegmentState::kSealed;
  segment.footer = {};
}

bool SegmentLog::WriteFooter(Segment& segment) {
  uint64_t tail = 0;
  Trailer trailer = {segment.epoch, context_.options.name_space, 0, 0, 0, 0};
  std::unique_ptr<AlignedBuffer> buffer;
  {
    std::lock_guard lock(context_.index.mutex());
    tail = segment.tail;
    buffer = std::make_unique<AlignedBuffer>(FooterBytes(segment.footer.size()));
    if (buffer->bytes() == 0) return false;
    if (!segment.footer.empty()) std::memcpy(buffer->data(), segment.footer.data(), segment.footer.size());
    trailer.footer_offset = tail;
    trailer.footer_bytes = segment.footer.size();
    trailer.footer_sum = Crc32c(segment.footer.data(), segment.footer.size());
    trailer.entries = static_cast<uint32_t>(segment.entries.size());
  }
  const uint64_t trailer_at = ToBlocks(trailer.footer_bytes);
  int error = 0;
  const char* call = "pwrite";
  if (trailer_at > 0) error = segment.file->Write(buffer->data(), trailer_at, tail);
  context_.calls.Pass("footer-written");
  if (error == 0) {
    WriteTrailer(trailer, buffer->data() + trailer_at);
    error = segment.file->Write(buffer->data() + trailer_at, kBlockBytes, tail + trailer_at);
    context_.calls.Pass("trailer-written");
  }
  if (error == 0) {
    call = "ftruncate";
    error = segment.file->Truncate(tail + trailer_at + kBlockBytes);
    context_.calls.Pass("segment-cut");
  }
  if (error != 0) {
    context_.Failed(call, error, context_.counters.failed_writes);
    return false;  // its records are found by their headers
  }
  {
    std::lock_guard lock(context_.index.mutex());
    ++segment.ticket;
    segment.footer_offset = trailer.footer_offset;
    segment.footer_bytes = trailer.footer_bytes;
    segment.file_bytes = tail + trailer_at + kBlockBytes;
  }
  if (context_.options.durability != Durability::kNone && Sync(segment) != Outcome::kDone) return false;
  context_.calls.Pass("footer-synced");
  return true;
}

}  // namespace vkv::store
