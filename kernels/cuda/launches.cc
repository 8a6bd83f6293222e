#include "kernels/cuda/launches.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace vkv::kernels::cuda {
namespace {

constexpr int64_t kBlockCostTokens = 128;  // a block's start and its part of merging, in tokens that it could have read
constexpr int64_t kMostWaves = 16;
constexpr int64_t kStepWaves = 4;  // so that sequences of different lengths even out

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The next spans of a list, as many as a launch takes.
std::span<const Span> TakeSpans(std::span<const Span>& left, Spans& spans) {
  const std::span<const Span> taken = left.first(std::min<size_t>(left.size(), kSpansPerLaunch));
  left = left.subspan(taken.size());
  spans.count = static_cast<int64_t>(taken.size());
  std::copy(taken.begin(), taken.end(), spans.entries);
  return taken;
}

// Tokens that a decoding sequence sees.
int32_t SeenTokens(const AttentionCommand& command, const Span& span) {
  return span.tokens == 0 ? 0 : span.length + 1 - FirstSeen(command, span.length);
}

// And any sequence at most.
int64_t MostSeenTokens(const AttentionCommand& command) {
  return command.window > 0 ? command.window : command.chunk > 0 ? command.chunk : INT32_MAX;
}

int64_t SplitTokens(int64_t longest, int64_t splits) {
  return CeilDiv(CeilDiv(longest, splits), kSplitStep) * kSplitStep;
}

// Into how many parts to split the longest sequence, and others at the same lengths. There are `total` tokens, for each
// of `head_blocks`; `slots` blocks run at a time, so they come in waves, and the last one should be full too.
int64_t ChooseSplits(int64_t longest, int64_t total, int64_t head_blocks, int64_t slots, int64_t most) {
  most = std::max<int64_t>(1, std::min(most, CeilDiv(longest, kLeastSplitTokens)));
  int64_t best = 1;
  int64_t least_cost = INT64_MAX;
  for (int64_t waves = 1; waves <= kMostWaves; ++waves) {
    const int64_t splits = std::clamp<int64_t>(waves * slots * longest / (head_blocks * total), 1, most);
    const int64_t tokens = SplitTokens(longest, splits);
    const int64_t cost = CeilDiv(head_blocks * CeilDiv(total, tokens), slots) * (tokens + kBlockCostTokens);
    if (cost < least_cost) {
      best = splits;
      least_cost = cost;
    }
    if (splits == most) break;
  }
  return best;
}

// Every row of every head starts at a multiple of 16 bytes, and is whole 16-byte loads.
bool IsAligned(const Tensor& tensor, Dtype dtype) {
  const int64_t bytes = tensor.dim * ElementBytes(dtype);
  const auto alike = static_cast<int64_t>(tensor.address) | tensor.slot_bytes | tensor.token_bytes | tensor.head_bytes;
  return (alike | bytes) % 16 == 0;
}

}  // namespace

Status LaunchAppend(const AppendCommand& command, std::span<const Span> spans, const Submit& submit) {
  AppendParameters parameters;
  parameters.command = command;
  while (!spans.empty()) {
    const std::span<const Span> taken = TakeSpans(spans, parameters.spans);
    const int64_t rows = taken.back().first_row + taken.back().tokens - taken.front().first_row;
    VKV_RETURN_IF_ERROR(SubmitOne(submit, "vkv_append", {ToGrid(rows), 1, 1}, kAppendThreads, 0, parameters));
  }
  return Ok();
}

Status LaunchCopy(std::span<const Region> regions, std::span<const TokenCopy> copies, const Submit& submit) {
  CopyParameters parameters;
  for (size_t c = 0; c < copies.size(); c += kCopiesPerLaunch) {
    const auto some_copies = copies.subspan(c, std::min<size_t>(copies.size() - c, kCopiesPerLaunch));
    for (size_t r = 0; r < regions.size(); r += kRegionsPerLaunch) {
      const auto some_regions = regions.subspan(r, std::min<size_t>(regions.size() - r, kRegionsPerLaunch));
      parameters.copy_count = static_cast<int32_t>(some_copies.size());
      parameters.region_count = static_cast<int32_t>(some_regions.size());
      std::copy(some_copies.begin(), some_copies.end(), parameters.copies);
      std::copy(some_regions.begin(), some_regions.end(), parameters.regions);
      int64_t most_tokens = 0;
      int64_t most_bytes = 0;
      for (const TokenCopy& copy : some_copies) most_tokens = std::max<int64_t>(most_tokens, copy.tokens);
      for (const Region& region : some_regions) most_bytes = std::max(most_bytes, most_tokens * region.token_bytes);
      const Grid grid = {ToGrid(CeilDiv(most_bytes, kCopyPieceBytes)), ToGrid(parameters.region_count),
                         ToGrid(parameters.copy_count)};
      VKV_RETURN_IF_ERROR(SubmitOne(submit, "vkv_copy", grid, kCopyThreads, 0, parameters));
    }
  }
  return Ok();
}

Status LaunchScatter(uint64_t source, std::span<const ScatterRun> runs, const Submit& submit) {
  ScatterParameters parameters;
  parameters.source = source;
  for (size_t first = 0; first < runs.size(); first += kRunsPerLaunch) {
    const auto some = runs.subspan(first, std::min<size_t>(runs.size() - first, kRunsPerLaunch));
    parameters.run_count = static_cast<int32_t>(some.size());
    std::copy(some.begin(), some.end(), parameters.runs);
    int64_t most_bytes = 0;
    for (const ScatterRun& run : some) most_bytes = std::max<int64_t>(most_bytes, run.bytes);
    const Grid grid = {ToGrid(CeilDiv(most_bytes, kScatterPieceBytes)), ToGrid(parameters.run_count), 1};
    VKV_RETURN_IF_ERROR(SubmitOne(submit, "vkv_scatter", grid, kScatterThreads, 0, parameters));
  }
  return Ok();
}

Status LaunchAppend(const AppendCommand& command, const StepList& list, const Submit& submit) {
  AppendParameters parameters;
  parameters.command = command;
  parameters.spans.count = list.count;
  parameters.spans.list = list.address;
  return SubmitOne(submit, "vkv_append", {ToGrid(list.count), 1, 1}, kAppendThreads, 0, parameters);
}

DecodeKernel ChooseDecode(const AttentionCommand& command) {
  const std::string start = std::string("vkv_decode_") + NameOf(command.cache_dtype);
  if (!IsAligned(command.keys, command.cache_dtype) || !IsAligned(command.values, command.cache_dtype)) {
    return {start + "_any", 1, kPlainDecodeBlocks};
  }
  const int widest = std::max(command.keys.dim, command.values.dim);
  const int dim = *std::lower_bound(std::begin(kDecodeDims), std::end(kDecodeDims), widest);
  const int group = command.query_heads / command.keys.heads;
  const int heads = group == 1 ? 1 : group <= 4 || dim == kMostDim ? 4 : 8;
  return {start + "_d" + std::to_string(dim) + "_h" + std::to_string(heads), heads,
          DecodeBlocks(ElementBytes(command.cache_dtype), dim, heads)};
}

Status LaunchDecode(const AttentionCommand& command, std::span<const Span> spans, int multiprocessors,
                    const Workspace& workspace, const Submit& submit) {
  const DecodeKernel kernel = ChooseDecode(command);
  DecodeParameters parameters;
  parameters.command = command;
  parameters.group = command.query_heads / command.keys.heads;
  parameters.group_blocks = static_cast<int32_t>(CeilDiv(parameters.group, kernel.heads));
  const int64_t head_blocks = int64_t{command.keys.heads} * parameters.group_blocks;
  parameters.partials = workspace.address;
  while (!spans.empty()) {
    const std::span<const Span> taken = TakeSpans(spans, parameters.spans);
    int32_t longest = 0;
    int64_t total = 0;
    for (const Span& span : taken) {
      const int32_t tokens = SeenTokens(command, span);
      longest = std::max(longest, tokens);
      total += tokens;
    }
    if (longest == 0) continue;
    const auto count = static_cast<int64_t>(taken.size());
    const int64_t partial_bytes =
        count * command.query_heads * (kPartialHeader + command.values.dim) * static_cast<int64_t>(sizeof(float));
    const int64_t most = std::min<int64_t>(kMostSplits, static_cast<int64_t>(workspace.bytes) / partial_bytes);
    const int64_t slots = int64_t{kernel.blocks} * multiprocessors;
    const int64_t splits = ChooseSplits(longest, total, head_blocks, slots, most);
    parameters.split_tokens = static_cast<int32_t>(SplitTokens(longest, splits));
    parameters.splits = static_cast<int32_t>(CeilDiv(longest, parameters.split_tokens));
    VKV_RETURN_IF_ERROR(SubmitOne(submit, kernel.name.c_str(),
                                  {ToGrid(head_blocks), ToGrid(parameters.splits), ToGrid(count)}, kDecodeThreads, 0,
                                  parameters));
    if (parameters.splits == 1) continue;
    VKV_RETURN_IF_ERROR(
        SubmitOne(submit, "vkv_merge", {ToGrid(command.query_heads), ToGrid(count), 1}, kDecodeThreads, 0, parameters));
  }
  return Ok();
}

// Lengths are unknown: takes as many splits as give every multiprocessor kStepWaves times the blocks that it runs at a
// time. A sequence that is too short leaves some of them without tokens, which end at once.
Status LaunchDecode(const AttentionCommand& command, const StepList& list, int multiprocessors,
                    const Workspace& workspace, const Submit& submit) {
  if (list.count == 0) return Ok();
  const DecodeKernel kernel = ChooseDecode(command);
  DecodeParameters parameters;
  parameters.command = command;
  parameters.group = command.query_heads / command.keys.heads;
  parameters.group_blocks = static_cast<int32_t>(CeilDiv(parameters.group, kernel.heads));
  parameters.partials = workspace.address;
  parameters.spans.count = list.count;
  parameters.spans.list = list.address;
  const int64_t head_blocks = int64_t{command.keys.heads} * parameters.group_blocks;
  const int64_t partial_bytes =
      list.count * command.query_heads * (kPartialHeader + command.values.dim) * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::min<int64_t>(kMostSplits, static_cast<int64_t>(workspace.bytes) / partial_bytes);
  const int64_t wanted = std::min(CeilDiv(kStepWaves * kernel.blocks * multiprocessors, head_blocks * list.count),
                                  CeilDiv(MostSeenTokens(command), kLeastSplitTokens));
  parameters.splits = static_cast<int32_t>(std::max<int64_t>(1, std::min(most, wanted)));
  // One split takes whatever there is.
  parameters.split_tokens = parameters.splits == 1 ? INT32_MAX / 2 : 0;
  VKV_RETURN_IF_ERROR(SubmitOne(submit, kernel.name.c_str(),
                                {ToGrid(head_blocks), ToGrid(parameters.splits), ToGrid(list.count)}, kDecodeThreads, 0,
                                parameters));
  if (parameters.splits == 1) return Ok();
  return SubmitOne(submit, "vkv_merge", {ToGrid(command.query_heads), ToGrid(list.count), 1}, kDecodeThreads, 0,
                   parameters);
}

PrefillKernel ChoosePrefill(const AttentionCommand& command) {
  const std::string start = std::string("vkv_prefill_") + NameOf(command.cache_dtype);
  const int dim = command.keys.dim;
  const int value_dim = command.values.dim;
  const int rows = PrefillRows(dim, value_dim);
  const int plain_bytes = PrefillSharedBytes(dim, value_dim);
  const bool is_for_tiles = command.cache_dtype != Dtype::kFloat32 && rows == kPrefillTileRows &&
                            IsAligned(command.keys, command.cache_dtype) &&
                            IsAligned(command.values, command.cache_dtype);
  if (!is_for_tiles) return {start + "_r" + std::to_string(rows), rows, plain_bytes};
  const int tile_dim = std::max(dim, value_dim) <= 64 ? 64 : 128;
  return {start + "_d" + std::to_string(tile_dim), rows, std::max(plain_bytes, PrefillTileBytes(tile_dim))};
}

Status LaunchPrefill(const AttentionCommand& command, std::span<const Span> spans, const Submit& submit) {
  const auto [kernel, rows, shared_bytes] = ChoosePrefill(command);
  PrefillParameters parameters;
  parameters.command = command;
  while (!spans.empty()) {
    const std::span<const Span> taken = TakeSpans(spans, parameters.spans);
    int32_t longest = 0;
    for (const Span& span : taken) longest = std::max(longest, span.tokens);
    const Grid grid = {ToGrid(CeilDiv(longest, rows)), ToGrid(command.query_heads),
                       ToGrid(static_cast<int64_t>(taken.size()))};
    VKV_RETURN_IF_ERROR(SubmitOne(submit, kernel.c_str(), grid, 4 * rows, shared_bytes, parameters));
  }
  return Ok();
}

}  // namespace vkv::kernels::cuda
