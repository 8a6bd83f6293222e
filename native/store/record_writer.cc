#include "store/record_writer.h"

#include <errno.h>

#include <algorithm>

#include "crc32c.h"
#include "store/record_reader.h"

namespace vkv::store {
namespace {

// Of one list; more go into further lists.
constexpr size_t kMostRemovals = 512;

}  // namespace

Outcome RecordWriter::OutcomeOf(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? Outcome::kNoSpace : Outcome::kFailed;
}

Outcome RecordWriter::Write(RecordHeader& header, const Source& source, HeaderAfter after, AlignedBuffer& scratch,
                            Room& room, size_t& entry) {
  const Outcome outcome = log_.Reserve(header.record_bytes(), header.header_bytes(), RoomFor::kRecord, room);
  if (outcome != Outcome::kDone) return outcome;
  context_.calls.Pass("record-begun");
  int error = WritePayload(header, source, room, scratch);
  if (error == 0 && after == HeaderAfter::kPayloadSynced) {
    if (log_.SyncPayloads(*room.segment) != Outcome::kDone) error = EIO;
    context_.calls.Pass("payload-synced");
  }
  if (error != 0)
    log_.GiveBack(room);
  else
    error = WriteRecordHeader(header, room, entry);
  if (error == 0) return Outcome::kDone;
  log_.Release(room);
  return OutcomeOf(error);
}

Outcome RecordWriter::Put(PutRequest& request, AlignedBuffer& scratch) {
  RecordHeader& header = request.header;
  Room room;
  size_t entry = 0;
  const Source source = [&request](size_t stripe) { return request.sources[stripe]; };
  const Outcome outcome = Write(header, source, HeaderAfter::kPayloadWritten, scratch, room, entry);
  if (outcome != Outcome::kDone) {
    context_.index.AbandonPut(header.key);
    return outcome;
  }
  context_.calls.Pass("record-written");
  Outcome synced = Outcome::kDone;
  if (context_.options.durability == Durability::kSync) synced = log_.Sync(*room.segment);
  context_.calls.Pass("record-synced");
  if (synced == Outcome::kDone)
    context_.index.Publish(*room.segment, entry);
  else
    context_.index.AbandonPut(header.key);
  log_.Release(room);
  CountUnsynced(header.record_bytes());
  return synced;
}

void RecordWriter::CountUnsynced(uint64_t bytes) {
  if (context_.options.durability == Durability::kInterval) context_.counters.unsynced_bytes += bytes;
}

int RecordWriter::WritePayload(RecordHeader& header, const Source& source, const Room& room, AlignedBuffer& scratch) {
  uint64_t written = header.payload_start(), filled = 0;
  const auto flush = [&] {
    const uint64_t whole = ToBlocks(filled);
    std::memset(scratch.data() + filled, 0, whole - filled);
    const int error = log_.Write(room, written, scratch.data(), whole);
    written += whole;
    filled = 0;
    context_.calls.Pass("payload-part-written");
    return error;
  };
  for (size_t k = 0; k < header.stripes.size(); ++k) {
    const StripeEntry& stripe = header.stripes[k];
    const uint64_t start = header.payload_start() + stripe.offset;  // the gap before it is less than a block
    while (written + filled < start) {
      if (filled == scratch.bytes())
        if (const int error = flush()) return error;
      scratch.data()[filled++] = 0;
    }
    const uint8_t* const from = stripe.bytes == 0 ? nullptr : source(k);
    if (stripe.bytes != 0 && from == nullptr) return EIO;
    uint32_t sum = 0;
    for (uint64_t done = 0; done < stripe.bytes;) {
      if (filled == scratch.bytes())
        if (const int error = flush()) return error;
      const uint64_t chunk_left = header.chunk_bytes - done % header.chunk_bytes;
      const uint64_t bytes = std::min({chunk_left, stripe.bytes - done, scratch.bytes() - filled});
      std::memcpy(scratch.data() + filled, from + done, bytes);
      sum = Crc32c(scratch.data() + filled, bytes, sum);
      done += bytes;
      filled += bytes;
      if (done % header.chunk_bytes != 0 && done != stripe.bytes) continue;
      header.sums[stripe.first_sum + (done - 1) / header.chunk_bytes] = sum;
      sum = 0;
    }
  }
  return filled == 0 ? 0 : flush();
}

int RecordWriter::WriteRecordHeader(RecordHeader& header, const Room& room, size_t& entry) {
  header.epoch = room.segment->epoch;
  header.name_space = context_.options.name_space;
  header.segment_offset = room.offset;
  AlignedBuffer block(header.payload_start());
  if (block.bytes() == 0) {
    log_.GiveBack(room);
    return ENOMEM;
  }
  WriteHeader(header, block.data());
  if (const int error = log_.Write(room, 0, block.data(), header.payload_start())) {
    context_.index.AddDoubtful(*room.segment, header);
    return error;
  }
  const std::span<const uint8_t> bytes(block.data(), header.header_bytes());
  entry = header.kind == RecordKind::kRecord ? context_.index.Add(*room.segment, header, bytes)
                                             : context_.index.AddRemovals(*room.segment, header, bytes);
  return 0;
}

Outcome RecordWriter::RecordRemovals() {
  std::lock_guard lock(removals_mutex_);
  for (;;) {
    const std::vector<Removal> removals = context_.index.TakeUnrecorded();
    if (removals.empty()) return Outcome::kDone;
    for (size_t from = 0; from < removals.size(); from += kMostRemovals) {
      const std::span<const Removal> list =
          std::span(removals).subspan(from, std::min(kMostRemovals, removals.size() - from));
      const Outcome outcome = WriteRemovals(list);
      if (outcome == Outcome::kDone) continue;
      context_.index.PutBack(std::span(removals).subspan(from));
      return outcome;
    }
    if (context_.options.durability != Durability::kSync) return Outcome::kDone;
  }
}

Outcome RecordWriter::WriteRemovals(std::span<const Removal> removals) {
  RecordHeader header;
  header.kind = RecordKind::kRemovals;
  header.sequence = context_.index.TakeSequence();
  header.removals.assign(removals.begin(), removals.end());
  Room room;
  const Outcome outcome = log_.Reserve(header.record_bytes(), header.header_bytes(), RoomFor::kRemovals, room);
  if (outcome != Outcome::kDone) return outcome;
  size_t entry = 0;
  if (const int error = WriteRecordHeader(header, room, entry)) {
    log_.Release(room);
    return OutcomeOf(error);
  }
  context_.calls.Pass("removals-written");
  uint64_t ticket = 0;
  {
    std::lock_guard lock(context_.index.mutex());
    ticket = room.segment->entries[entry].ticket;
  }
  Outcome synced = Outcome::kDone;
  if (context_.options.durability == Durability::kSync) synced = log_.Sync(*room.segment);
  context_.calls.Pass("removals-synced");
  if (synced == Outcome::kDone) context_.index.Recorded(*room.segment, removals, ticket);
  log_.Release(room);
  CountUnsynced(header.record_bytes());
  return synced;
}

Outcome RecordWriter::CopyPayload(RecordCopy& copy, AlignedBuffer& scratch, bool& is_lost) {
  RecordHeader& header = copy.header;
  uint64_t moved = 0;
  const ReadState state = ReadRecordHeader(context_, copy.from, header, moved);
  is_lost = state == ReadState::kCorrupt;
  if (state != ReadState::kGood) return Outcome::kFailed;
  const Outcome outcome = log_.Reserve(header.record_bytes(), header.header_bytes(), RoomFor::kCopy, copy.room);
  if (outcome != Outcome::kDone) return outcome;
  const int error = MovePayload(copy, scratch);
  if (error == 0) return Outcome::kDone;
  log_.GiveBack(copy.room);
  log_.Release(copy.room);
  return OutcomeOf(error);
}

Outcome RecordWriter::CopyHeader(RecordCopy& copy) {
  copy.header.level = context_.index.LevelOf(copy.from);
  const int error = WriteRecordHeader(copy.header, copy.room, copy.entry);
  return error == 0 ? Outcome::kDone : OutcomeOf(error);
}

int RecordWriter::MovePayload(const RecordCopy& copy, AlignedBuffer& scratch) {
  const auto& [from, header, room, entry] = copy;
  for (uint64_t at = header.payload_start(); at < header.record_bytes();) {
    const uint64_t bytes = std::min(scratch.bytes(), header.record_bytes() - at);
    uint64_t read = 0;
    if (const int error = from.segment->file->Read(scratch.data(), bytes, from.offset + at, read))
      return context_.Failed("pread", error, context_.counters.failed_reads);
    std::memset(scratch.data() + read, 0, bytes - read);  // what is missing stays corrupt: its sums are copied
    if (const int error = log_.Write(room, at, scratch.data(), bytes)) return error;
    at += bytes;
  }
  return 0;
}

}  // namespace vkv::store
