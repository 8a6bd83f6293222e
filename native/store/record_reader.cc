#include "store/record_reader.h"

#include <algorithm>
#include <unordered_map>

#include "crc32c.h"

namespace vkv::store {
namespace {

// Of one piece; a scratch buffer holds it, with a block for each end that lies within one.
constexpr uint64_t kPieceBytes = 1 << 20;
// Of one call that scatters: chunks, and gaps between them.
constexpr size_t kMostParts = 512;
// Bytes between two chunks that are rather read than jumped over.
constexpr uint64_t kGapBytes = 16 << 10;

}  // namespace

ReadState ReadRecordHeader(StoreContext& context, const RecordPlace& place, RecordHeader& header) {
  AlignedBuffer buffer(place.header_bytes);
  uint64_t read = 0;
  if (buffer.bytes() == 0) return ReadState::kIo;
  if (const int error = place.segment->file->Read(buffer.data(), buffer.bytes(), place.offset, read)) {
    context.Failed("pread", error, context.counters.failed_reads);
    return ReadState::kIo;
  }
  const std::span<const uint8_t> bytes(buffer.data(), std::min<uint64_t>(read, place.header_bytes));
  const Parsed parsed = ReadHeader(bytes, place.segment->epoch, context.options.name_space, place.offset, header);
  const bool is_it = parsed == Parsed::kGood && header.key == place.key && header.sequence == place.sequence &&
                     header.record_bytes() == place.bytes && header.kind == RecordKind::kRecord;
  if (is_it) return ReadState::kGood;
  ++context.counters.corrupt_reads;
  return ReadState::kCorrupt;
}

RecordRead::RecordRead(StoreContext& context, RecordPlace place, std::vector<ReadRequest> requests)
    : context_(context),
      place_(std::move(place)),
      requests_(std::move(requests)),
      states_(new std::atomic<uint8_t>[requests_.size() + 1]) {
  for (size_t k = 0; k < requests_.size(); ++k) states_[k].store(0, std::memory_order_relaxed);
}

bool RecordRead::ReadHeader() {
  const ReadState state = ReadRecordHeader(context_, place_, header_);
  for (uint32_t k = 0; k < requests_.size(); ++k) Fail(k, state);
  return state == ReadState::kGood;
}

size_t RecordRead::Plan() {
  if (!ReadHeader()) return 0;
  std::unordered_map<uint32_t, const StripeEntry*> stripes;
  for (const StripeEntry& stripe : header_.stripes) stripes[stripe.id] = &stripe;
  for (uint32_t k = 0; k < requests_.size(); ++k) {
    const ReadRequest& request = requests_[k];
    const auto found = stripes.find(request.stripe);
    if (found == stripes.end() || request.offset > found->second->bytes ||
        request.bytes > found->second->bytes - request.offset)
      Fail(k, ReadState::kAbsent);
    else
      AddChunks(k, *found->second);
  }
  return Divide();
}

size_t RecordRead::PlanWhole() {
  RecordHeader header;
  const ReadState state = ReadRecordHeader(context_, place_, header);
  requests_.resize(state == ReadState::kGood ? header.stripes.size() : 1);
  states_.reset(new std::atomic<uint8_t>[requests_.size() + 1]);
  for (size_t k = 0; k < requests_.size(); ++k) states_[k].store(0, std::memory_order_relaxed);
  if (state != ReadState::kGood) {
    Fail(0, state);
    return 0;
  }
  header_ = std::move(header);
  for (uint32_t k = 0; k < requests_.size(); ++k) {
    const StripeEntry& stripe = header_.stripes[k];
    requests_[k] = {stripe.id, 0, stripe.bytes, nullptr};
    AddChunks(k, stripe);
  }
  return Divide();
}

void RecordRead::AddChunks(uint32_t request, const StripeEntry& stripe) {
  const ReadRequest& wanted = requests_[request];
  const uint64_t start = place_.offset + header_.payload_start() + stripe.offset, end = wanted.offset + wanted.bytes;
  for (uint64_t at = wanted.offset; at < end;) {
    const uint64_t number = at / kChunkBytes, from = number * kChunkBytes;
    const uint64_t bytes = std::min<uint64_t>(kChunkBytes, stripe.bytes - from),
                   take = std::min(from + bytes, end) - at;
    uint8_t* const target = wanted.target == nullptr ? nullptr : wanted.target + (at - wanted.offset);
    chunks_.push_back({start + from, static_cast<uint32_t>(bytes), header_.sums[stripe.first_sum + number], request,
                       static_cast<uint32_t>(at - from), static_cast<uint32_t>(take), target});
    at += take;
  }
}

bool RecordRead::IsStraight(const Chunk& chunk) const {
  if (chunk.target == nullptr || chunk.skip != 0 || chunk.take != chunk.bytes) return false;
  if (!place_.segment->file->is_direct()) return true;
  return (chunk.file_offset | chunk.bytes | reinterpret_cast<uint64_t>(chunk.target)) % kBlockBytes == 0;
}

size_t RecordRead::Divide() {
  std::stable_sort(chunks_.begin(), chunks_.end(),
                   [](const Chunk& a, const Chunk& b) { return a.file_offset < b.file_offset; });
  const uint64_t straight_gap = place_.segment->file->is_direct() ? 0 : kStripeAlignment;
  for (size_t k = 0; k < chunks_.size(); ++k) {
    const Chunk& chunk = chunks_[k];
    const bool is_straight = IsStraight(chunk);
    const uint64_t from = chunk.file_offset / kBlockBytes * kBlockBytes,
                   end = ToBlocks(chunk.file_offset + chunk.bytes);
    if (!pieces_.empty() && pieces_.back().is_straight == is_straight) {
      Piece& last = pieces_.back();
      const Chunk& before = chunks_[k - 1];
      const uint64_t joined = std::max(end, last.file_from + last.file_bytes) - last.file_from;
      const uint64_t before_end = before.file_offset + before.bytes;
      const bool is_near = is_straight
                               ? chunk.file_offset >= before_end && chunk.file_offset - before_end <= straight_gap &&
                                     2 * (k - last.first_chunk) < kMostParts
                               : from <= last.file_from + last.file_bytes + kGapBytes;
      if (joined <= kPieceBytes && is_near) {
        last.end_chunk = k + 1;
        last.file_bytes = joined;
        continue;
      }
    }
    pieces_.push_back({k, k + 1, from, end - from, is_straight});
  }
  left_ = pieces_.size();
  return pieces_.size();
}

bool RecordRead::ReadStraight(const Piece& piece, AlignedBuffer& scratch) {
  iovec parts[kMostParts + 2];
  size_t count = 0;
  const uint64_t start = chunks_[piece.first_chunk].file_offset;
  uint64_t at = start;
  for (size_t k = piece.first_chunk; k < piece.end_chunk; ++k) {
    const Chunk& chunk = chunks_[k];
    if (chunk.file_offset > at) parts[count++] = {scratch.data(), chunk.file_offset - at};
    parts[count++] = {chunk.target, chunk.bytes};
    at = chunk.file_offset + chunk.bytes;
  }
  if (!place_.segment->file->ReadParts(parts, count, at - start, start)) return false;
  for (size_t k = piece.first_chunk; k < piece.end_chunk; ++k)
    Check(chunks_[k], chunks_[k].target, chunks_[k].file_offset, chunks_[k].bytes);
  return true;
}

bool RecordRead::Run(size_t number, AlignedBuffer& scratch) {
  const Piece& piece = pieces_[number];
  if (piece.is_straight && ReadStraight(piece, scratch)) return left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  uint64_t read = 0;
  const BlockFile& file = *place_.segment->file;
  const int error = file.Read(scratch.data(), piece.file_bytes, piece.file_from, read);
  if (error != 0) context_.Failed("pread", error, context_.counters.failed_reads);
  for (size_t k = piece.first_chunk; k < piece.end_chunk; ++k) {
    const Chunk& chunk = chunks_[k];
    if (error == 0) {
      Check(chunk, scratch.data(), piece.file_from, read);
      continue;
    }
    // One bad sector takes no neighbours along.
    const uint64_t from = chunk.file_offset / kBlockBytes * kBlockBytes;
    if (const int again = file.Read(scratch.data(), ToBlocks(chunk.file_offset + chunk.bytes) - from, from, read)) {
      context_.Failed("pread", again, context_.counters.failed_reads);
      Fail(chunk.request, ReadState::kIo);
    } else {
      Check(chunk, scratch.data(), from, read);
    }
  }
  return left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void RecordRead::Check(const Chunk& chunk, const uint8_t* data, uint64_t data_from, uint64_t data_bytes) {
  const uint64_t at = chunk.file_offset - data_from;
  if (at + chunk.bytes > data_bytes || Crc32c(data + at, chunk.bytes) != chunk.sum) {
    ++context_.counters.corrupt_reads;
    Fail(chunk.request, ReadState::kCorrupt);
    return;
  }
  if (chunk.target == nullptr) return;
  if (data != chunk.target) std::memcpy(chunk.target, data + at + chunk.skip, chunk.take);
  context_.counters.get_bytes += chunk.take;
}

void RecordRead::Fail(uint32_t request, ReadState state) {
  if (state != ReadState::kGood) states_[request].store(static_cast<uint8_t>(state), std::memory_order_relaxed);
}

std::vector<uint8_t> RecordRead::TakeStates() {
  std::vector<uint8_t> states(requests_.size());
  for (size_t k = 0; k < states.size(); ++k) states[k] = states_[k].load(std::memory_order_relaxed);
  return states;
}

}  // namespace vkv::store
