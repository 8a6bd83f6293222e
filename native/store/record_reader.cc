#include "store/record_reader.h"

#include <algorithm>
#include <unordered_map>

#include "crc32c.h"

namespace vkv::store {
namespace {

// Bytes between two chunks of a range that are rather read than jumped over. Reads of single tokens jump: they are made
// to read little.
constexpr uint64_t kGapBytes = 16 << 10;

std::unordered_map<uint32_t, const StripeEntry*> StripesById(const RecordHeader& header) {
  std::unordered_map<uint32_t, const StripeEntry*> stripes;
  for (const StripeEntry& stripe : header.stripes) stripes[stripe.id] = &stripe;
  return stripes;
}

void SortByOffset(std::vector<StripeSpan>& spans) {
  std::sort(spans.begin(), spans.end(), [](const StripeSpan& a, const StripeSpan& b) { return a.offset < b.offset; });
}

// Where the bytes of a range lie in a stripe whose rows are stored in an order of their own.
std::vector<StripeSpan> RowsOf(const RecordHeader& header, const StripeEntry& stripe, const ReadRequest& request) {
  std::vector<StripeSpan> spans;
  const uint64_t row_bytes = header.RowBytes(stripe), end = request.offset + request.bytes;
  for (uint64_t at = request.offset; at < end;) {
    const uint64_t in_row = at % row_bytes, bytes = std::min(row_bytes - in_row, end - at);
    uint8_t* const target = request.target == nullptr ? nullptr : request.target + (at - request.offset);
    spans.push_back({header.StoredRow(at / row_bytes) * row_bytes + in_row, bytes, target});
    at += bytes;
  }
  SortByOffset(spans);
  return spans;
}

}  // namespace

ReadState ReadRecordHeader(StoreContext& context, const RecordPlace& place, RecordHeader& header, uint64_t& moved) {
  moved = 0;
  AlignedBuffer buffer(place.header_bytes);
  if (buffer.bytes() == 0) return ReadState::kIo;
  if (const int error = place.segment->file->Read(buffer.data(), buffer.bytes(), place.offset, moved)) {
    context.Failed("pread", error, context.counters.failed_reads);
    return ReadState::kIo;
  }
  const std::span<const uint8_t> bytes(buffer.data(), std::min<uint64_t>(moved, place.header_bytes));
  const Parsed parsed = ReadHeader(bytes, place.segment->epoch, context.options.name_space, place.offset, header);
  const bool is_it = parsed == Parsed::kGood && header.key == place.key && header.sequence == place.sequence &&
                     header.record_bytes() == place.bytes && header.kind == RecordKind::kRecord;
  if (is_it) return ReadState::kGood;
  ++context.counters.corrupt_reads;
  return ReadState::kCorrupt;
}

RecordRead::RecordRead(StoreContext& context, RecordPlace place, std::vector<ReadRequest> requests, bool checks)
    : context_(context),
      place_(std::move(place)),
      is_of_tokens_(false),
      checks_(checks),
      requests_(std::move(requests)) {
  MakeStates(requests_.size());
}

RecordRead::RecordRead(StoreContext& context, RecordPlace place, TokenRequests tokens)
    : context_(context), place_(std::move(place)), is_of_tokens_(true), checks_(true), tokens_(std::move(tokens)) {
  MakeStates(tokens_.parts.size());
}

void RecordRead::MakeStates(size_t count) {
  state_count_ = count;
  states_.reset(new std::atomic<uint8_t>[count + 1]);
  for (size_t k = 0; k < count; ++k) states_[k].store(0, std::memory_order_relaxed);
}

std::shared_ptr<const RecordHeader> RecordRead::ReadHeader() {
  // Few tokens of a layer at a time would be read with a header that has more bytes than they.
  if (is_of_tokens_)
    if (auto known = context_.headers.Find(place_)) return known;
  auto header = std::make_shared<RecordHeader>();
  uint64_t moved = 0;
  const ReadState state = ReadRecordHeader(context_, place_, *header, moved);
  read_bytes_ += moved;
  if (state != ReadState::kGood) {
    FailAll(state);
    return nullptr;
  }
  if (is_of_tokens_) context_.headers.Keep(place_, header);
  return header;
}

size_t RecordRead::Plan() {
  const auto header = ReadHeader();
  if (header == nullptr) return 0;
  if (is_of_tokens_)
    PlanTokens(*header);
  else
    PlanRanges(*header);
  return Divide();
}

size_t RecordRead::PlanWhole() {
  MakeStates(1);
  const auto header = ReadHeader();
  if (header == nullptr) return 0;
  MakeStates(header->stripes.size());
  for (uint32_t k = 0; k < header->stripes.size(); ++k) {
    const StripeSpan all = {0, header->stripes[k].bytes, nullptr};
    plan_.Add(k, *header, place_.offset, header->stripes[k], {&all, 1});
  }
  return Divide();
}

void RecordRead::PlanRanges(const RecordHeader& header) {
  const auto stripes = StripesById(header);
  for (uint32_t k = 0; k < requests_.size(); ++k) {
    const ReadRequest& request = requests_[k];
    const auto found = stripes.find(request.stripe);
    if (found == stripes.end() || request.offset > found->second->bytes ||
        request.bytes > found->second->bytes - request.offset) {
      Fail(k, ReadState::kAbsent);
      continue;
    }
    if (header.stored_to_logical.empty()) {
      const StripeSpan span = {request.offset, request.bytes, request.target};
      plan_.Add(k, header, place_.offset, *found->second, {&span, 1});
    } else {
      plan_.Add(k, header, place_.offset, *found->second, RowsOf(header, *found->second, request));
    }
  }
}

void RecordRead::PlanTokens(const RecordHeader& header) {
  const auto stripes = StripesById(header);
  std::vector<std::vector<StripeSpan>> parts(tokens_.parts.size());
  uint8_t* target = tokens_.target.data();
  uint64_t left = tokens_.target.size();
  size_t token = 0;
  for (size_t k = 0; k < parts.size(); ++k) {
    const TokenRequests::Part& part = tokens_.parts[k];
    const auto found = stripes.find(part.stripe);
    const uint64_t row_bytes = found == stripes.end() ? 0 : header.RowBytes(*found->second);
    parts[k].reserve(part.end - token);
    for (; token < part.end; ++token) {
      const uint32_t row = tokens_.tokens[token];
      if (row_bytes == 0 || row >= header.tokens.size() || left < row_bytes) return FailAll(ReadState::kAbsent);
      parts[k].push_back({header.StoredRow(row) * row_bytes, row_bytes, target});
      target += row_bytes;
      left -= row_bytes;
    }
  }
  if (left != 0) return FailAll(ReadState::kAbsent);
  for (uint32_t k = 0; k < parts.size(); ++k) {
    if (parts[k].empty()) continue;
    SortByOffset(parts[k]);
    plan_.Add(k, header, place_.offset, *stripes.at(tokens_.parts[k].stripe), parts[k]);
  }
}

size_t RecordRead::Divide() {
  ReadPlan::Rules rules;
  rules.is_direct = place_.segment->file->is_direct();
  rules.can_be_straight = !is_of_tokens_;
  rules.gap_bytes = is_of_tokens_ ? 0 : kGapBytes;
  plan_.Divide(rules);
  left_ = plan_.pieces.size();
  return plan_.pieces.size();
}

bool RecordRead::ReadStraight(const ReadPlan::Piece& piece, AlignedBuffer& scratch) {
  iovec parts[ReadPlan::kMostParts + 2];
  size_t count = 0;
  const uint64_t start = plan_.chunks[piece.first_chunk].file_offset;
  uint64_t at = start;
  for (size_t k = piece.first_chunk; k < piece.end_chunk; ++k) {
    const ReadPlan::Chunk& chunk = plan_.chunks[k];
    if (chunk.file_offset > at) parts[count++] = {scratch.data(), chunk.file_offset - at};
    parts[count++] = {plan_.copies[chunk.first_copy].target, chunk.bytes};
    at = chunk.file_offset + chunk.bytes;
  }
  if (!place_.segment->file->ReadParts(parts, count, at - start, start)) return false;
  read_bytes_ += at - start;
  for (size_t k = piece.first_chunk; k < piece.end_chunk; ++k) {
    const ReadPlan::Chunk& chunk = plan_.chunks[k];
    Take(chunk, plan_.copies[chunk.first_copy].target, chunk.file_offset, chunk.bytes);
  }
  return true;
}

bool RecordRead::Run(size_t number, AlignedBuffer& scratch) {
  const ReadPlan::Piece& piece = plan_.pieces[number];
  if (piece.is_straight && ReadStraight(piece, scratch)) return left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  uint64_t read = 0;
  const BlockFile& file = *place_.segment->file;
  const int error = file.Read(scratch.data(), piece.file_bytes, piece.file_from, read);
  read_bytes_ += read;
  if (error != 0) context_.Failed("pread", error, context_.counters.failed_reads);
  for (size_t k = piece.first_chunk; k < piece.end_chunk; ++k) {
    const ReadPlan::Chunk& chunk = plan_.chunks[k];
    if (error == 0) {
      Take(chunk, scratch.data(), piece.file_from, read);
      continue;
    }
    // One bad sector takes no neighbours along.
    const uint64_t from = chunk.file_offset / kBlockBytes * kBlockBytes;
    if (const int again = file.Read(scratch.data(), ToBlocks(chunk.file_offset + chunk.bytes) - from, from, read)) {
      context_.Failed("pread", again, context_.counters.failed_reads);
      Fail(chunk.request, ReadState::kIo);
    } else {
      Take(chunk, scratch.data(), from, read);
    }
    read_bytes_ += read;
  }
  return left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void RecordRead::Take(const ReadPlan::Chunk& chunk, const uint8_t* data, uint64_t data_from, uint64_t data_bytes) {
  const uint64_t at = chunk.file_offset - data_from;
  if (at + chunk.bytes > data_bytes || (checks_ && Crc32c(data + at, chunk.bytes) != chunk.sum)) {
    ++context_.counters.corrupt_reads;
    Fail(chunk.request, ReadState::kCorrupt);
    return;
  }
  for (size_t k = chunk.first_copy; k < chunk.end_copy; ++k) {
    const ReadPlan::Copy& copy = plan_.copies[k];
    if (copy.target == nullptr) continue;
    if (data + at + copy.skip != copy.target) std::memcpy(copy.target, data + at + copy.skip, copy.take);
    context_.counters.get_bytes += copy.take;
  }
}

void RecordRead::Fail(size_t request, ReadState state) {
  if (state != ReadState::kGood) states_[request].store(static_cast<uint8_t>(state), std::memory_order_relaxed);
}

void RecordRead::FailAll(ReadState state) {
  for (size_t k = 0; k < state_count_; ++k) Fail(k, state);
}

std::vector<uint8_t> RecordRead::TakeStates() {
  std::vector<uint8_t> states(state_count_);
  for (size_t k = 0; k < states.size(); ++k) states[k] = states_[k].load(std::memory_order_relaxed);
  return states;
}

}  // namespace vkv::store
