#include "store/guessed_read.h"

namespace vkv::store {

std::unique_ptr<GuessedRead> GuessedRead::Plan(const std::vector<ReadRequest>& requests, const RecordPlace& place) {
  if (requests.empty() || place.shape.is_reordered || !place.segment->file->is_direct()) return nullptr;
  RecordHeader guess;
  guess.chunk_bytes = uint32_t{1} << place.shape.chunk_log2;
  for (const ReadRequest& request : requests) {
    if (request.offset != 0 || request.bytes == 0 || request.target == nullptr) return nullptr;
    guess.stripes.push_back({request.stripe, 0, request.bytes, 0});
  }
  PlaceStripes(guess);
  const uint64_t front_bytes = ToBlocks(place.header_bytes);
  if (ToBlocks(front_bytes + guess.payload_bytes()) != place.bytes) return nullptr;
  std::unique_ptr<GuessedRead> read(new GuessedRead(place, front_bytes));
  if (read->front_.bytes() == 0) return nullptr;
  for (uint32_t k = 0; k < requests.size(); ++k) {
    const StripeSpan span = {0, requests[k].bytes, requests[k].target};
    read->plan_.Add(k, guess, place.offset + front_bytes - guess.payload_start(), guess.stripes[k], {&span, 1});
  }
  read->plan_.Divide({.is_direct = true, .can_be_straight = true, .gap_bytes = 0});
  for (const ReadPlan::Piece& piece : read->plan_.pieces)
    if (!piece.is_straight) return nullptr;
  return read;
}

void GuessedRead::Run(size_t number) {
  const ReadPlan::Piece& piece = plan_.pieces[number];
  std::vector<iovec> parts;
  if (number == 0) parts.push_back({front_.data(), front_.bytes()});
  const uint64_t bytes = plan_.ListParts(piece, nullptr, parts) + (number == 0 ? front_.bytes() : 0);
  const uint64_t start = number == 0 ? place_.offset : plan_.chunks[piece.first_chunk].file_offset;
  if (place_.segment->file->ReadParts(parts.data(), parts.size(), bytes, start))
    read_bytes_ += bytes;
  else
    has_failed_ = true;
}

std::span<const uint8_t> GuessedRead::header() const {
  if (has_failed_) return {};
  return {front_.data(), place_.header_bytes};
}

bool GuessedRead::HasRead(const ReadPlan& plan) const {
  if (plan.chunks.size() != plan_.chunks.size()) return false;
  for (const ReadPlan::Piece& piece : plan.pieces)
    if (!piece.is_straight) return false;
  for (size_t k = 0; k < plan.chunks.size(); ++k) {
    const ReadPlan::Chunk &chunk = plan.chunks[k], &guess = plan_.chunks[k];
    if (chunk.file_offset != guess.file_offset || chunk.bytes != guess.bytes || chunk.request != guess.request ||
        plan.copies[chunk.first_copy].target != plan_.copies[guess.first_copy].target)
      return false;
  }
  return true;
}

}  // namespace vkv::store
