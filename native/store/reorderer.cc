#include "store/reorderer.h"

#include <algorithm>

namespace vkv::store {

Reordered Reorderer::Reorder(const Key& key, std::span<const uint32_t> stored_to_logical, AlignedBuffer& scratch) {
  RecordPlace from;
  uint64_t sequence = 0;
  if (!context_.index.BeginCopy(key, from, sequence)) return {Outcome::kFailed, ReadState::kAbsent, false};
  const Reordered reordered = Rewrite(from, sequence, stored_to_logical, scratch);
  context_.index.EndCopy(key);
  return reordered;
}

Reordered Reorderer::Rewrite(const RecordPlace& from, uint64_t sequence, std::span<const uint32_t> stored_to_logical,
                             AlignedBuffer& scratch) {
  RecordHeader header;
  uint64_t moved = 0;
  Reordered reordered;
  reordered.state = ReadRecordHeader(context_, from, header, moved);
  if (reordered.state != ReadState::kGood) return reordered;
  const std::vector<uint32_t> before = header.stored_to_logical;
  if (!SetOrder(header, stored_to_logical)) return {Outcome::kFailed, ReadState::kAbsent, false};
  if (header.stored_to_logical == before && header.chunk_bytes == context_.options.chunk_bytes)
    return {Outcome::kDone, ReadState::kGood, false};
  header.sequence = sequence;
  header.level = context_.index.LevelOf(from);
  header.chunk_bytes = context_.options.chunk_bytes;
  PlaceStripes(header);
  const uint64_t header_bytes = header.header_bytes();
  if (header_bytes > kMaxHeaderBytes ||
      header.record_bytes() > SegmentLog::LargestRecord(context_.options.segment_bytes, header_bytes))
    return {Outcome::kFailed, ReadState::kGood, true};

  uint64_t most_bytes = 0;
  for (const StripeEntry& stripe : header.stripes) most_bytes = std::max(most_bytes, stripe.bytes);
  AlignedBuffer rows(most_bytes), read_scratch(kScratchBytes);
  if (rows.bytes() < most_bytes || read_scratch.bytes() == 0) return reordered;
  const RecordWriter::Source source = [&](size_t stripe) -> const uint8_t* {
    const StripeEntry& entry = header.stripes[stripe];
    reordered.state = ReadStripe(from, entry, stored_to_logical, {rows.data(), entry.bytes}, read_scratch);
    return reordered.state == ReadState::kGood ? rows.data() : nullptr;
  };
  Room room;
  size_t entry = 0;
  reordered.outcome = writer_.Write(header, source, HeaderAfter::kPayloadSynced, scratch, room, entry);
  if (reordered.outcome != Outcome::kDone) return reordered;
  context_.calls.Pass("reordered-written");
  // In every durability: the old copy may be safe already, and goes once the new one counts.
  reordered.outcome = log_.Sync(*room.segment);
  context_.calls.Pass("reordered-synced");
  if (reordered.outcome == Outcome::kDone && !context_.index.Move(from, *room.segment, entry))
    reordered = {Outcome::kFailed, ReadState::kAbsent, false};  // removed meanwhile, or moved by the collector
  log_.Release(room);
  return reordered;
}

ReadState Reorderer::ReadStripe(const RecordPlace& from, const StripeEntry& stripe, std::span<const uint32_t> order,
                                std::span<uint8_t> rows, AlignedBuffer& scratch) {
  TokenRequests requests;
  requests.parts.push_back({stripe.id, order.size()});
  requests.tokens.assign(order.begin(), order.end());
  requests.target = rows;
  RecordRead read(context_, from, std::move(requests));
  const size_t pieces = read.Plan();
  for (size_t k = 0; k < pieces; ++k) (void)read.Run(k, scratch);
  return static_cast<ReadState>(read.TakeStates()[0]);
}

}  // namespace vkv::store
