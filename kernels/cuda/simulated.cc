#include "kernels/cuda/simulated.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/simulated_base.h"
#include "kernels/dense/cuda/simulated_dense.h"
#include "kernels/reference.h"

namespace vkv::kernels::cuda {
namespace {

using mock::LaunchArguments;
using mock::SimulatedKernel;
using mock::Touch;

std::span<const Span> SpansOf(const Spans& spans) {
  return {spans.list != 0 ? reinterpret_cast<const Span*>(spans.list) : spans.entries,
          static_cast<size_t>(spans.count)};
}

constexpr int64_t kMostListed = 65'535;  // a grid's third dimension

bool AreSpansPossible(const Spans& spans) {
  return spans.count >= 1 && spans.count <= (spans.list != 0 ? kMostListed : kSpansPerLaunch);
}

// From the first byte of token `from` to the last of token `to - 1`, of one slot and tensor.
void TouchTokens(std::vector<Touch>& touches, const Tensor& tensor, Dtype dtype, int32_t slot, int64_t from, int64_t to,
                 bool is_write) {
  if (to <= from) return;
  const int64_t last_bytes = (tensor.heads - 1) * tensor.head_bytes + tensor.dim * ElementBytes(dtype);
  touches.push_back({tensor.address + static_cast<uint64_t>(slot * tensor.slot_bytes + from * tensor.token_bytes),
                     static_cast<uint64_t>((to - 1 - from) * tensor.token_bytes + last_bytes), is_write});
}

void TouchRows(std::vector<Touch>& touches, uint64_t address, Dtype dtype, const Spans& spans, int64_t elements,
               bool is_write) {
  const Span& last = SpansOf(spans).back();
  const int64_t first_row = SpansOf(spans).front().first_row;
  const int64_t rows = last.first_row + last.tokens - first_row;
  const int64_t bytes = elements * ElementBytes(dtype);
  if (rows > 0) {
    touches.push_back(
        {address + static_cast<uint64_t>(first_row * bytes), static_cast<uint64_t>(rows * bytes), is_write});
  }
}

// The ranges that an attention kernel reads: queries, sinks, and the keys and values that its spans see.
std::vector<Touch> TouchesOfAttention(const AttentionCommand& command, const Spans& spans) {
  std::vector<Touch> touches;
  for (const Span& span : SpansOf(spans)) {
    if (span.tokens == 0) continue;
    const int64_t from = FirstSeen(command, span.length);
    const int64_t to = int64_t{span.length} + span.tokens;
    TouchTokens(touches, command.keys, command.cache_dtype, span.slot, from, to, /*is_write=*/false);
    TouchTokens(touches, command.values, command.cache_dtype, span.slot, from, to, /*is_write=*/false);
  }
  if (command.sinks != 0) touches.push_back({command.sinks, command.query_heads * sizeof(float), /*is_write=*/false});
  TouchRows(touches, command.queries, command.row_dtype, spans, int64_t{command.query_heads} * command.keys.dim,
            /*is_write=*/false);
  return touches;
}

void TouchOutput(std::vector<Touch>& touches, const AttentionCommand& command, const Spans& spans) {
  TouchRows(touches, command.output, command.row_dtype, spans, int64_t{command.query_heads} * command.values.dim,
            /*is_write=*/true);
}

Touch PartialsOf(const DecodeParameters& parameters, bool is_write) {
  const int64_t floats = parameters.spans.count * parameters.command.query_heads * parameters.splits *
                         (kPartialHeader + parameters.command.values.dim);
  return {parameters.partials, static_cast<uint64_t>(floats) * sizeof(float), is_write};
}

// Calls `call(span, tokens of its splits, its partial results)` for each span, as each has splits of its own.
template <typename Call>
void ForEachSpan(const DecodeParameters& parameters, const Call& call) {
  auto* partials = reinterpret_cast<float*>(parameters.partials);
  const std::span<const Span> spans = SpansOf(parameters.spans);
  for (size_t i = 0; i < spans.size(); ++i) {
    const int seen = spans[i].length + 1 - FirstSeen(parameters.command, spans[i].length);
    call(spans.subspan(i, 1), SplitTokensOf(parameters, seen), partials);
    partials +=
        int64_t{parameters.command.query_heads} * parameters.splits * (kPartialHeader + parameters.command.values.dim);
  }
}

// Of a kernel over the spans of a step.
template <typename Parameters>
class SimulatedOverSpans : public Simulated<Parameters> {
  bool IsPossible(const Parameters& parameters) const final { return AreSpansPossible(parameters.spans); }
  mock::ListUse List(const Parameters& parameters) const final {
    const Spans& spans = parameters.spans;
    return {offsetof(Parameters, spans) + offsetof(Spans, list), spans.list != 0 ? spans.count * sizeof(Span) : 0};
  }
};

class SimulatedAppend final : public SimulatedOverSpans<AppendParameters> {
  bool HasSize(const LaunchArguments& launch, const AppendParameters& parameters) const override {
    const Spans& spans = parameters.spans;
    if (spans.list != 0) return IsSize(launch, spans.count, 1, 1, kAppendThreads);
    const Span& last = spans.entries[spans.count - 1];
    const int64_t rows = last.first_row + last.tokens - spans.entries[0].first_row;
    return IsSize(launch, rows, 1, 1, kAppendThreads);
  }
  std::vector<Touch> Touches(const AppendParameters& parameters) const override {
    const AppendCommand& command = parameters.command;
    std::vector<Touch> touches;
    for (const auto& [tensor, rows] :
         {std::pair{&command.keys, command.new_keys}, {&command.values, command.new_values}}) {
      for (const Span& span : SpansOf(parameters.spans)) {
        TouchTokens(touches, *tensor, command.cache_dtype, span.slot, span.length, int64_t{span.length} + span.tokens,
                    /*is_write=*/true);
      }
      TouchRows(touches, rows, command.row_dtype, parameters.spans, int64_t{tensor->heads} * tensor->dim,
                /*is_write=*/false);
    }
    return touches;
  }
  void RunIt(const AppendParameters& parameters) const override {
    reference::Append(parameters.command, SpansOf(parameters.spans));
  }
};

class SimulatedCopy final : public Simulated<CopyParameters> {
  bool IsPossible(const CopyParameters& parameters) const override {
    return parameters.region_count >= 1 && parameters.region_count <= kRegionsPerLaunch && parameters.copy_count >= 1 &&
           parameters.copy_count <= kCopiesPerLaunch;
  }
  static std::span<const Region> RegionsOf(const CopyParameters& parameters) {
    return {parameters.regions, static_cast<size_t>(parameters.region_count)};
  }
  static std::span<const TokenCopy> CopiesOf(const CopyParameters& parameters) {
    return {parameters.copies, static_cast<size_t>(parameters.copy_count)};
  }
  bool HasSize(const LaunchArguments& launch, const CopyParameters& parameters) const override {
    int64_t most_bytes = 0;
    for (const Region& region : RegionsOf(parameters)) {
      for (const TokenCopy& copy : CopiesOf(parameters))
        most_bytes = std::max(most_bytes, copy.tokens * region.token_bytes);
    }
    return IsSize(launch, (most_bytes + kCopyPieceBytes - 1) / kCopyPieceBytes, parameters.region_count,
                  parameters.copy_count, kCopyThreads);
  }
  std::vector<Touch> Touches(const CopyParameters& parameters) const override {
    std::vector<Touch> touches;
    for (const Region& region : RegionsOf(parameters)) {
      for (const TokenCopy& copy : CopiesOf(parameters)) {
        const auto bytes = static_cast<uint64_t>(copy.tokens * region.token_bytes);
        const auto at = [&](int64_t slot, int64_t token) {
          return region.address + static_cast<uint64_t>(slot * region.slot_bytes + token * region.token_bytes);
        };
        if (bytes == 0) continue;
        touches.push_back({at(copy.to_slot, copy.to_token), bytes, /*is_write=*/true});
        touches.push_back({at(copy.from_slot, copy.from_token), bytes, /*is_write=*/false});
      }
    }
    return touches;
  }
  void RunIt(const CopyParameters& parameters) const override {
    reference::CopyTokens(RegionsOf(parameters), CopiesOf(parameters));
  }
};

class SimulatedScatter final : public Simulated<ScatterParameters> {
  bool IsPossible(const ScatterParameters& parameters) const override {
    return parameters.run_count >= 1 && parameters.run_count <= kRunsPerLaunch;
  }
  static std::span<const ScatterRun> RunsOf(const ScatterParameters& parameters) {
    return {parameters.runs, static_cast<size_t>(parameters.run_count)};
  }
  bool HasSize(const LaunchArguments& launch, const ScatterParameters& parameters) const override {
    int64_t most_bytes = 0;
    for (const ScatterRun& run : RunsOf(parameters)) most_bytes = std::max<int64_t>(most_bytes, run.bytes);
    return IsSize(launch, (most_bytes + kScatterPieceBytes - 1) / kScatterPieceBytes, parameters.run_count, 1,
                  kScatterThreads);
  }
  std::vector<Touch> Touches(const ScatterParameters& parameters) const override {
    std::vector<Touch> touches;
    for (const ScatterRun& run : RunsOf(parameters)) {
      touches.push_back({run.to, run.bytes, /*is_write=*/true});
      touches.push_back({parameters.source + run.from, run.bytes, /*is_write=*/false});
    }
    return touches;
  }
  void RunIt(const ScatterParameters& parameters) const override {
    for (const ScatterRun& run : RunsOf(parameters)) {
      std::memcpy(reinterpret_cast<void*>(run.to), reinterpret_cast<const void*>(parameters.source + run.from),
                  run.bytes);
    }
  }
};

// vkv_decode_*: the splits' partial results, or with one split the output.
class SimulatedDecode final : public SimulatedOverSpans<DecodeParameters> {
 public:
  explicit SimulatedDecode(std::string name) : name_(std::move(name)) {}

 private:
  bool HasSize(const LaunchArguments& launch, const DecodeParameters& parameters) const override {
    const AttentionCommand& command = parameters.command;
    const DecodeKernel kernel = ChooseDecode(command);
    int32_t longest = 0;
    for (const Span& span : SpansOf(parameters.spans)) {
      if (parameters.spans.list != 0) break;
      if (span.tokens > 1) return false;
      longest = std::max(longest, span.tokens * (span.length + 1 - FirstSeen(command, span.length)));
    }
    const int group = command.query_heads / command.keys.heads;
    const int group_blocks = (group + kernel.heads - 1) / kernel.heads;
    return kernel.name == name_ && parameters.group == group && parameters.group_blocks == group_blocks &&
           longest <= int64_t{parameters.splits} * parameters.split_tokens &&
           IsSize(launch, command.keys.heads * group_blocks, parameters.splits, parameters.spans.count, kDecodeThreads);
  }
  std::vector<Touch> Touches(const DecodeParameters& parameters) const override {
    std::vector<Touch> touches = TouchesOfAttention(parameters.command, parameters.spans);
    if (parameters.splits == 1)
      TouchOutput(touches, parameters.command, parameters.spans);
    else
      touches.push_back(PartialsOf(parameters, /*is_write=*/true));
    return touches;
  }
  void RunIt(const DecodeParameters& parameters) const override {
    if (parameters.splits == 1) {
      reference::Attention(parameters.command, SpansOf(parameters.spans));
    } else {
      ForEachSpan(parameters, [&](const std::span<const Span>& span, int split_tokens, float* partials) {
        reference::AttentionParts(parameters.command, span, parameters.splits, split_tokens, partials);
      });
    }
  }

  const std::string name_;
};

class SimulatedMerge final : public SimulatedOverSpans<DecodeParameters> {
  bool HasSize(const LaunchArguments& launch, const DecodeParameters& parameters) const override {
    return parameters.splits > 1 &&
           IsSize(launch, parameters.command.query_heads, parameters.spans.count, 1, kDecodeThreads);
  }
  std::vector<Touch> Touches(const DecodeParameters& parameters) const override {
    std::vector<Touch> touches = {PartialsOf(parameters, /*is_write=*/false)};
    TouchOutput(touches, parameters.command, parameters.spans);
    return touches;
  }
  void RunIt(const DecodeParameters& parameters) const override {
    ForEachSpan(parameters, [&](const std::span<const Span>& span, int split_tokens, const float* partials) {
      reference::MergeParts(parameters.command, span, parameters.splits, split_tokens, partials);
    });
  }
};

class SimulatedPrefill final : public SimulatedOverSpans<PrefillParameters> {
 public:
  explicit SimulatedPrefill(std::string name) : name_(std::move(name)) {}

 private:
  bool HasSize(const LaunchArguments& launch, const PrefillParameters& parameters) const override {
    const AttentionCommand& command = parameters.command;
    if (parameters.spans.list != 0) return false;
    int32_t longest = 0;
    for (const Span& span : SpansOf(parameters.spans)) longest = std::max(longest, span.tokens);
    const auto [kernel, rows, shared_bytes] = ChoosePrefill(command);
    return kernel == name_ && std::max(command.keys.dim, command.values.dim) <= kMostDim &&
           IsSize(launch, (longest + rows - 1) / rows, command.query_heads, parameters.spans.count, 4 * rows,
                  shared_bytes);
  }
  std::vector<Touch> Touches(const PrefillParameters& parameters) const override {
    std::vector<Touch> touches = TouchesOfAttention(parameters.command, parameters.spans);
    TouchOutput(touches, parameters.command, parameters.spans);
    return touches;
  }
  void RunIt(const PrefillParameters& parameters) const override {
    reference::Attention(parameters.command, SpansOf(parameters.spans));
  }

  const std::string name_;
};

}  // namespace

std::shared_ptr<const SimulatedKernel> FindSimulated(const char* name) {
  const std::string kernel = name;
  if (kernel == "vkv_append") return std::make_shared<SimulatedAppend>();
  if (kernel == "vkv_copy") return std::make_shared<SimulatedCopy>();
  if (kernel == "vkv_scatter") return std::make_shared<SimulatedScatter>();
  if (kernel == "vkv_merge") return std::make_shared<SimulatedMerge>();
  if (kernel.starts_with("vkv_prefill_")) return std::make_shared<SimulatedPrefill>(kernel);
  // The launch is compared with the kernel that the command needs, so every decode kernel has the same stand-in.
  if (kernel.starts_with("vkv_decode_")) return std::make_shared<SimulatedDecode>(kernel);
  return FindSimulatedDense(kernel);
}

}  // namespace vkv::kernels::cuda
