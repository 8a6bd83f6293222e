#include "simulated_block_table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/simulated.h"
#include "scripts/gpu/block_table.h"

namespace vkv::kernels::cuda {
namespace {

using mock::LaunchArguments;
using mock::Touch;

int64_t SlotsOf(const BlockTableParameters& parameters) {
  int64_t slots = 0;
  for (int64_t n = 0; n < parameters.spans.count; ++n) {
    slots = std::max<int64_t>(slots, parameters.spans.entries[n].slot + 1);
  }
  return slots;
}

// The blocks' tokens laid out in slots: what the table means.
std::vector<uint8_t> Gather(const Tensor& pool, const BlockTableParameters& parameters, Tensor& slots) {
  slots = pool;
  slots.slot_bytes = parameters.blocks_per_slot * pool.slot_bytes;
  std::vector<uint8_t> bytes(SlotsOf(parameters) * slots.slot_bytes);
  slots.address = reinterpret_cast<uint64_t>(bytes.data());
  for (int64_t n = 0; n < parameters.spans.count; ++n) {
    const Span& span = parameters.spans.entries[n];
    for (int64_t block = 0; span.tokens > 0 && block * kBlockTokens <= span.length; ++block) {
      const int64_t entry = span.slot * parameters.blocks_per_slot + block;
      const int32_t at = reinterpret_cast<const int32_t*>(parameters.table)[entry];
      if (at < 0 || at >= parameters.pool_blocks) {
        std::fprintf(stderr, "entry %lld of the block table is %d; the pool has %d blocks\n",
                     static_cast<long long>(entry), at, parameters.pool_blocks);
        std::abort();
      }
      std::memcpy(bytes.data() + entry * pool.slot_bytes,
                  reinterpret_cast<const uint8_t*>(pool.address) + at * pool.slot_bytes, pool.slot_bytes);
    }
  }
  return bytes;
}

// Launched as the decode kernel of the same shape, whose stand-in it asks.
class SimulatedBlockTable final : public mock::SimulatedKernel {
 public:
  explicit SimulatedBlockTable(std::shared_ptr<const mock::SimulatedKernel> decode) : decode_(std::move(decode)) {}

  size_t parameter_bytes() const override { return sizeof(BlockTableParameters); }
  bool IsLaunchable(const LaunchArguments& launch) const override {
    const BlockTableParameters& parameters = Of(launch.parameter);
    LaunchArguments decode = launch;
    decode.parameter = static_cast<const DecodeParameters*>(&parameters);
    const Tensor& keys = parameters.command.keys;
    const Tensor& values = parameters.command.values;
    if (!decode_->IsLaunchable(decode) || parameters.table == 0 || keys.slot_bytes < kBlockTokens * keys.token_bytes ||
        values.slot_bytes < kBlockTokens * values.token_bytes) {
      return false;
    }
    return std::all_of(parameters.spans.entries, parameters.spans.entries + parameters.spans.count,
                       [&](const Span& span) { return span.length < parameters.blocks_per_slot * kBlockTokens; });
  }
  // Of the pools everything: which blocks are read is in the table, which earlier work may still write.
  std::vector<Touch> TouchesOf(const void* parameter) const override {
    const BlockTableParameters& parameters = Of(parameter);
    const AttentionCommand& command = parameters.command;
    std::vector<Touch> touches = {
        {parameters.table, SlotsOf(parameters) * parameters.blocks_per_slot * sizeof(int32_t), /*is_write=*/false}};
    for (const Tensor& pool : {command.keys, command.values}) {
      touches.push_back(
          {pool.address, static_cast<uint64_t>(parameters.pool_blocks * pool.slot_bytes), /*is_write=*/false});
    }
    const Span& last = parameters.spans.entries[parameters.spans.count - 1];
    const int64_t rows = last.first_row + last.tokens;
    const int64_t heads = rows * command.query_heads;
    const int64_t element = ElementBytes(command.row_dtype);
    touches.push_back({command.queries, static_cast<uint64_t>(heads * command.keys.dim * element), /*is_write=*/false});
    if (parameters.splits == 1) {
      touches.push_back(
          {command.output, static_cast<uint64_t>(heads * command.values.dim * element), /*is_write=*/true});
    } else {
      const int64_t floats =
          parameters.spans.count * command.query_heads * parameters.splits * (kPartialHeader + command.values.dim);
      touches.push_back({parameters.partials, floats * sizeof(float), /*is_write=*/true});
    }
    return touches;
  }
  void Run(const void* parameter) const override {
    const BlockTableParameters& parameters = Of(parameter);
    DecodeParameters decode = parameters;
    const std::vector<uint8_t> keys = Gather(parameters.command.keys, parameters, decode.command.keys);
    const std::vector<uint8_t> values = Gather(parameters.command.values, parameters, decode.command.values);
    decode_->Run(&decode);
  }

 private:
  static const BlockTableParameters& Of(const void* parameter) {
    return *static_cast<const BlockTableParameters*>(parameter);
  }

  const std::shared_ptr<const mock::SimulatedKernel> decode_;
};

}  // namespace

std::shared_ptr<const mock::SimulatedKernel> FindSimulatedBlockTable(const char* name) {
  std::string kernel = name;
  if (!kernel.starts_with(kBlockTablePrefix)) return nullptr;
  kernel.replace(0, sizeof(kBlockTablePrefix) - 1, kDecodePrefix);
  return std::make_shared<SimulatedBlockTable>(FindSimulated(kernel.c_str()));
}

}  // namespace vkv::kernels::cuda
