#include "kernels/cpu/kernel_set_cpu.h"

#include <algorithm>
#include <cstring>

namespace vkv::kernels {
namespace {

// Below this waking another thread costs more than it saves.
constexpr int64_t kBytesPerThread = 32 << 10;
// Parts per thread, so that one that comes late does not keep the others waiting.
constexpr int64_t kPartsPerThread = 4;
constexpr int32_t kLeastPartTokens = 2 * kDecodeTokens;
constexpr int64_t kRowsPerTask = 64;
constexpr int64_t kCopyBytesPerTask = 1 << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t RowsOf(std::span<const Span> spans) {
  return spans.empty() ? 0 : int64_t{spans.back().first_row} + spans.back().tokens;
}

uint8_t* At(const Tensor& tensor, int64_t slot, int64_t token) {
  return reinterpret_cast<uint8_t*>(tensor.address) + slot * tensor.slot_bytes + token * tensor.token_bytes;
}

}  // namespace

void CpuKernels::MakeScratch(int64_t floats_per_thread, int64_t shared_floats) {
  floats_per_thread_ = WholeLines(floats_per_thread);  // threads do not share one
  scratch_.Reserve(floats_per_thread_ * threads_ + shared_floats);
}

Status CpuKernels::Append(const AppendCommand& command, std::span<const Span> spans) {
  const int64_t rows = RowsOf(spans);
  const auto append = [&](const Tensor& tensor, uint64_t from, const Span& span, int64_t token) {
    const int64_t elements = int64_t{tensor.heads} * tensor.dim;
    const auto* row =
        reinterpret_cast<const uint8_t*>(from) + (span.first_row + token) * elements * ElementBytes(command.row_dtype);
    uint8_t* const to = At(tensor, span.slot, span.length + token);
    if (tensor.head_bytes == tensor.dim * ElementBytes(command.cache_dtype)) {
      simd_->convert(to, command.cache_dtype, row, command.row_dtype, elements);
      return;
    }
    for (int64_t head = 0; head < tensor.heads; ++head) {
      simd_->convert(to + head * tensor.head_bytes, command.cache_dtype,
                     row + head * tensor.dim * ElementBytes(command.row_dtype), command.row_dtype, tensor.dim);
    }
  };
  const int64_t row_bytes = command.keys.token_bytes + command.values.token_bytes;
  const int threads = rows * row_bytes < 2 * kBytesPerThread ? 1 : threads_;
  loop_->ForEach(CeilDiv(rows, kRowsPerTask), threads, [&](int64_t task, int) {
    const int64_t first = task * kRowsPerTask;
    const int64_t end = std::min(rows, first + kRowsPerTask);
    auto span = std::upper_bound(spans.begin(), spans.end(), first,
                                 [](int64_t row, const Span& other) { return row < other.first_row; }) -
                1;
    for (int64_t row = first; row < end; ++row) {
      while (row >= int64_t{span->first_row} + span->tokens) ++span;
      append(command.keys, command.new_keys, *span, row - span->first_row);
      append(command.values, command.new_values, *span, row - span->first_row);
    }
  });
  return Ok();
}

Status CpuKernels::CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) {
  int64_t most_bytes = 0;
  int64_t all_bytes = 0;
  for (const TokenCopy& copy : copies) {
    for (const Region& region : regions) {
      most_bytes = std::max(most_bytes, copy.tokens * region.token_bytes);
      all_bytes += copy.tokens * region.token_bytes;
    }
  }
  const int64_t pieces = CeilDiv(most_bytes, kCopyBytesPerTask);
  const auto regions_count = static_cast<int64_t>(regions.size());
  const int64_t tasks = static_cast<int64_t>(copies.size()) * regions_count * pieces;
  loop_->ForEach(tasks, all_bytes < 2 * kBytesPerThread ? 1 : threads_, [&](int64_t task, int) {
    const TokenCopy& copy = copies[static_cast<size_t>(task / (regions_count * pieces))];
    const Region& region = regions[static_cast<size_t>(task / pieces % regions_count)];
    const int64_t begin = task % pieces * kCopyBytesPerTask;
    const int64_t bytes = std::min(copy.tokens * region.token_bytes - begin, kCopyBytesPerTask);
    if (bytes <= 0) return;
    auto* const base = reinterpret_cast<uint8_t*>(region.address);
    std::memcpy(base + copy.to_slot * region.slot_bytes + copy.to_token * region.token_bytes + begin,
                base + copy.from_slot * region.slot_bytes + copy.from_token * region.token_bytes + begin,
                static_cast<size_t>(bytes));
  });
  return Ok();
}

Status CpuKernels::DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) {
  int64_t all_tokens = 0;
  for (const Span& span : spans) all_tokens += span.tokens == 0 ? 0 : span.length + 1 - FirstSeen(command, span.length);
  const int64_t bytes =
      all_tokens * (command.keys.heads * command.keys.head_bytes + command.values.heads * command.values.head_bytes);
  const int threads = static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1, threads_));
  const int64_t wanted = CeilDiv(CeilDiv(all_tokens, threads * kPartsPerThread), kDecodeTokens) * kDecodeTokens;
  const auto part_tokens = static_cast<int32_t>(threads == 1 ? INT32_MAX : std::max<int64_t>(wanted, kLeastPartTokens));

  parts_.clear();
  if (spans.size() > parts_left_size_) {
    parts_left_.reset(new std::atomic<int32_t>[spans.size()]);
    parts_left_size_ = spans.size();
  }
  for (size_t index = 0; index < spans.size(); ++index) {
    if (spans[index].tokens == 0) continue;
    const int32_t length = spans[index].length + 1;
    const int32_t seen_from = FirstSeen(command, spans[index].length);
    const auto first = static_cast<int32_t>(parts_.size());
    const auto count = static_cast<int32_t>(CeilDiv(length - seen_from, part_tokens));
    for (int32_t part = 0; part < count; ++part) {
      const int32_t from = seen_from + part * part_tokens;
      parts_.push_back({static_cast<int32_t>(index), from, std::min(length - from, part_tokens) + from, first, count});
    }
    parts_left_[index].store(count, std::memory_order_relaxed);
  }

  // Per part, in shared scratch: sums [query head, padded value dim], largest, total [query head].
  const int64_t heads = command.query_heads;
  const int64_t sums = heads * Padded(command.values.dim);
  const int64_t stride = WholeLines(sums + 2 * heads);
  MakeScratch(DecodeScratchFloats(command), stride * static_cast<int64_t>(parts_.size()));
  loop_->ForEach(static_cast<int64_t>(parts_.size()), threads, [&](int64_t task, int worker) {
    const Part& part = parts_[static_cast<size_t>(task)];
    const Span& span = spans[static_cast<size_t>(part.span)];
    const auto at = [&](int64_t index) { return shared_scratch() + index * stride; };
    float* const own = at(task);
    const bool has_sinks = command.sinks != 0 && task == part.first_part;
    simd_->decode(
        {&command, span.slot, span.first_row, part.from, part.to, own + sums, own + sums + heads, own, has_sinks},
        ScratchOf(worker));
    // The thread that finishes the last part of a sequence merges all parts.
    if (parts_left_[static_cast<size_t>(part.span)].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    float* const first = at(part.first_part);
    simd_->merge({&command, span.first_row, part.parts, stride, first + sums, first + sums + heads, first});
  });
  return Ok();
}

Status CpuKernels::PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) {
  const int32_t group = command.query_heads / command.keys.heads;
  const int32_t heads_at_once = std::min<int32_t>(group, kPrefillRows);
  const int32_t tokens_at_once = kPrefillRows / heads_at_once;
  blocks_.clear();
  for (size_t index = 0; index < spans.size(); ++index) {
    const Span& span = spans[index];
    for (int32_t from = 0; from < span.tokens; from += tokens_at_once) {
      blocks_.push_back({static_cast<int32_t>(index), from, std::min(span.tokens, from + tokens_at_once)});
    }
  }
  MakeScratch(PrefillScratchFloats(command), /*shared_floats=*/0);
  const int64_t head_blocks = CeilDiv(group, heads_at_once);
  const int64_t per_block = command.keys.heads * head_blocks;
  const auto blocks = static_cast<int64_t>(blocks_.size());
  loop_->ForEach(blocks * per_block, threads_, [&](int64_t task, int worker) {
    // The last blocks of a sequence see the most keys: they come first, so that no thread is left with a long one.
    const Block& block = blocks_[static_cast<size_t>(blocks - 1 - task / per_block)];
    const auto kv_head = static_cast<int32_t>(task % per_block / head_blocks);
    const auto from_head = static_cast<int32_t>(kv_head * group + task % head_blocks * heads_at_once);
    const int32_t to_head = std::min(from_head + heads_at_once, (kv_head + 1) * group);
    simd_->prefill({&command, spans[static_cast<size_t>(block.span)], kv_head, from_head, to_head, block.from_token,
                    block.to_token},
                   ScratchOf(worker));
  });
  return Ok();
}

}  // namespace vkv::kernels
