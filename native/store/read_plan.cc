#include "store/read_plan.h"

#include <algorithm>

namespace vkv::store {
namespace {

// Of one piece; a scratch buffer holds it, with a block for each end that lies within one.
constexpr uint64_t kPieceBytes = kScratchBytes - 2 * kBlockBytes;

}  // namespace

void ReadPlan::Add(uint32_t request, const RecordHeader& header, uint64_t record_offset, const StripeEntry& stripe,
                   std::span<const StripeSpan> spans) {
  const uint64_t start = record_offset + header.payload_start() + stripe.offset;
  const size_t first = chunks.size();
  for (const StripeSpan& span : spans) {
    const uint64_t end = span.offset + span.bytes;
    for (uint64_t at = span.offset; at < end;) {
      const uint64_t number = at / header.chunk_bytes, from = number * header.chunk_bytes;
      const uint64_t bytes = std::min<uint64_t>(header.chunk_bytes, stripe.bytes - from),
                     take = std::min(from + bytes, end) - at;
      if (chunks.size() == first || chunks.back().file_offset != start + from)
        chunks.push_back({start + from, static_cast<uint32_t>(bytes), header.sums[stripe.first_sum + number], request,
                          copies.size(), copies.size()});
      uint8_t* const target = span.target == nullptr ? nullptr : span.target + (at - span.offset);
      copies.push_back({static_cast<uint32_t>(at - from), static_cast<uint32_t>(take), target});
      chunks.back().end_copy = copies.size();
      at += take;
    }
  }
}

bool ReadPlan::IsStraight(const Chunk& chunk, const Rules& rules) const {
  if (!rules.can_be_straight || chunk.end_copy - chunk.first_copy != 1) return false;
  const Copy& copy = copies[chunk.first_copy];
  if (copy.target == nullptr || copy.skip != 0 || copy.take != chunk.bytes) return false;
  if (!rules.is_direct) return true;
  return (chunk.file_offset | chunk.bytes | reinterpret_cast<uint64_t>(copy.target)) % kBlockBytes == 0;
}

void ReadPlan::Divide(const Rules& rules) {
  std::stable_sort(chunks.begin(), chunks.end(),
                   [](const Chunk& a, const Chunk& b) { return a.file_offset < b.file_offset; });
  const uint64_t straight_gap = rules.is_direct ? 0 : kStripeAlignment;
  for (size_t k = 0; k < chunks.size(); ++k) {
    const Chunk& chunk = chunks[k];
    const bool is_straight = IsStraight(chunk, rules);
    const uint64_t from = chunk.file_offset / kBlockBytes * kBlockBytes,
                   end = ToBlocks(chunk.file_offset + chunk.bytes);
    if (!pieces.empty() && pieces.back().is_straight == is_straight) {
      Piece& last = pieces.back();
      const Chunk& before = chunks[k - 1];
      const uint64_t joined = std::max(end, last.file_from + last.file_bytes) - last.file_from;
      const uint64_t before_end = before.file_offset + before.bytes;
      const bool is_near = is_straight
                               ? chunk.file_offset >= before_end && chunk.file_offset - before_end <= straight_gap &&
                                     2 * (k - last.first_chunk) < kMostParts
                               : from <= last.file_from + last.file_bytes + rules.gap_bytes;
      if (joined <= kPieceBytes && is_near) {
        last.end_chunk = k + 1;
        last.file_bytes = joined;
        continue;
      }
    }
    pieces.push_back({k, k + 1, from, end - from, is_straight});
  }
}

}  // namespace vkv::store
