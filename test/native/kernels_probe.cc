// Runs the CUDA kernels' own sources on emulated threads and compares each with its reference: random shapes, types,
// layouts and lengths. Usage: kernels_probe SEED ROUNDS. One line per kernel that ran: its name, runs, and "ok" or what
// was wrong.
#include "cuda_emulation.h"
//
#include "kernel_probe.h"
//
#include "attention_world.h"
#include "kernels/cuda/kernels.cu"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/scatter.cu"
#include "kernels/reference.h"
#include "scripts/gpu/block_table.cu"

namespace {

using namespace vkv;
using namespace vkv::kernels;
using namespace vkv::probe;

Status Run(const cuda::Launch& launch) {
  using namespace cuda;
  const std::string name = launch.name;
  last_kernel = name == "vkv_merge" ? last_kernel : name;
  ++outcomes[name].runs;
#define VKV_TRY(kernel) \
  if (name == #kernel) return Emulate(kernel, launch), Ok()
#define VKV_TRY_ALL(type)               \
  VKV_TRY(vkv_decode_##type##_d64_h1);  \
  VKV_TRY(vkv_decode_##type##_d64_h4);  \
  VKV_TRY(vkv_decode_##type##_d64_h8);  \
  VKV_TRY(vkv_decode_##type##_d128_h1); \
  VKV_TRY(vkv_decode_##type##_d128_h4); \
  VKV_TRY(vkv_decode_##type##_d128_h8); \
  VKV_TRY(vkv_decode_##type##_d256_h1); \
  VKV_TRY(vkv_decode_##type##_d256_h4); \
  VKV_TRY(vkv_decode_##type##_any);     \
  VKV_TRY(vkv_prefill_##type##_r32);    \
  VKV_TRY(vkv_prefill_##type##_r16)
  VKV_TRY(vkv_append);
  VKV_TRY(vkv_copy);
  VKV_TRY(vkv_scatter);
  VKV_TRY(vkv_merge);
  VKV_TRY(vkv_prefill_f16_d64);
  VKV_TRY(vkv_prefill_f16_d128);
  VKV_TRY(vkv_prefill_bf16_d64);
  VKV_TRY(vkv_prefill_bf16_d128);
  VKV_TRY_ALL(f32);
  VKV_TRY_ALL(f16);
  VKV_TRY_ALL(bf16);
  outcomes[name].problem = "no such kernel";
  return Ok();
}

// Memory of a cache, and rows.
struct World {
  std::vector<uint8_t> bytes;

  uint64_t at(size_t offset) { return reinterpret_cast<uint64_t>(bytes.data()) + offset; }
};

// Has more splits than vkv_merge loads at once.
constexpr int kManySplitsTokens = 5000;

// `longest`: tokens of the first slot, with few heads; 0: any.
void AttendOnce(bool is_decoding, int longest = 0) {
  AttentionWorld ours = AttentionWorld::Random(is_decoding, longest, /*has_rules=*/Next() % 4 != 0);
  AttentionWorld theirs = ours;
  theirs.Guard(theirs.spans());
  reference::Attention(theirs.command(), theirs.spans());
  std::vector<uint8_t> workspace(1 << 20, 0xff);
  ours.Guard(ours.spans());
  if (is_decoding && Next() % 3 == 0) {  // as a captured step: a row for each span, and spans beyond the step's own
    std::vector<Span> listed = ours.spans();
    std::erase_if(listed, [](const Span& span) { return span.tokens == 0; });
    for (int extra = Pick({0, 1, 3}); extra > 0; --extra)
      listed.push_back({0, 0, 0, static_cast<int32_t>(listed.size())});
    const cuda::Workspace place = {reinterpret_cast<uint64_t>(workspace.data()), Next() % 2 * workspace.size()};
    const cuda::StepList list = {reinterpret_cast<uint64_t>(listed.data()), static_cast<int32_t>(listed.size())};
    (void)cuda::LaunchDecode(ours.command(), list, /*multiprocessors=*/16, place, Run);
  } else if (is_decoding) {
    const cuda::Workspace place = {reinterpret_cast<uint64_t>(workspace.data()), workspace.size()};
    (void)cuda::LaunchDecode(ours.command(), ours.spans(), /*multiprocessors=*/16, place, Run);
  } else {
    (void)cuda::LaunchPrefill(ours.command(), ours.spans(), Run);
  }
  if (const std::string wrong = ours.Compare(theirs); !wrong.empty()) return Note(wrong);
  if (is_decoding) return;
  const std::vector<uint8_t> whole = ours.TakeOutput();
  std::vector<Span> first, second;
  ours.Cut(first, second);
  for (const std::vector<Span>& part : {first, second}) {
    ours.Guard(part);
    (void)cuda::LaunchPrefill(ours.command(), part, Run);
  }
  if (ours.TakeOutput() != whole) Note(ours.Name() + ": other bits in two passes than in one");
}

// gpu-check's decode kernels: blocks of a pool, found through a table, against the reference over the same tokens in
// slots.
void AttendThroughATable() {
  constexpr int kDim = 128;
  constexpr int kSlots = 3;
  constexpr int kBlocksPerSlot = 20;
  constexpr size_t kBlocks = kSlots * kBlocksPerSlot;
  const int kv_heads = Pick({1, 2});
  const int query_heads = kv_heads * Pick({1, 4, 5, 8});
  const int64_t token_bytes = kv_heads * kDim * 2;
  const int64_t block_bytes = cuda::kBlockTokens * token_bytes;
  const size_t half = kBlocks * block_bytes;  // K, then V
  World slots;
  World pool;
  slots.bytes.resize(2 * half);
  pool.bytes.resize(2 * half);
  FillFloats(slots.at(0), Dtype::kFloat16, half);
  std::vector<int32_t> table(kBlocks);
  for (size_t block = 0; block < kBlocks; ++block) {
    const size_t other = Next() % (block + 1);
    table[block] = table[other];
    table[other] = static_cast<int32_t>(block);
  }
  for (size_t block = 0; block < kBlocks; ++block) {
    for (const size_t tensor : {size_t{0}, half}) {
      std::memcpy(pool.bytes.data() + tensor + table[block] * block_bytes,
                  slots.bytes.data() + tensor + block * block_bytes, block_bytes);
    }
  }
  std::vector<Span> spans;
  for (int slot = 0; slot < kSlots; ++slot) spans.push_back({2 - slot, Pick({0, 14, 15, 16, 97, 318, 319}), 1, slot});
  std::vector<float> queries(kSlots * query_heads * kDim);
  for (float& element : queries) element = NextFloat();
  std::vector<float> outputs[2];
  for (std::vector<float>& output : outputs) output.resize(queries.size(), NAN);
  const auto command_of = [&](World& world, int64_t slot_bytes, std::vector<float>& output) {
    AttentionCommand command;
    command.keys = {world.at(0), slot_bytes, token_bytes, kDim * 2, kv_heads, kDim};
    command.values = command.keys;
    command.values.address = world.at(half);
    command.queries = reinterpret_cast<uint64_t>(queries.data());
    command.output = reinterpret_cast<uint64_t>(output.data());
    command.cache_dtype = Dtype::kFloat16;
    command.query_heads = query_heads;
    command.scale = 0.4f;
    return command;
  };
  std::vector<uint8_t> workspace(1 << 20, 0xff);
  const cuda::Workspace place = {reinterpret_cast<uint64_t>(workspace.data()), Next() % 2 * workspace.size()};
  const auto run = [&](const cuda::Launch& launch) {
    std::string name = launch.name;
    if (!name.starts_with(cuda::kDecodePrefix)) return Run(launch);
    last_kernel = name.replace(0, sizeof(cuda::kDecodePrefix) - 1, cuda::kBlockTablePrefix);
    ++outcomes[name].runs;
    cuda::BlockTableParameters parameters;
    static_cast<cuda::DecodeParameters&>(parameters) = *static_cast<const cuda::DecodeParameters*>(launch.parameters);
    parameters.table = reinterpret_cast<uint64_t>(table.data());
    parameters.blocks_per_slot = kBlocksPerSlot;
    cuda::Launch with_table = launch;
    with_table.parameters = &parameters;
    if (name.ends_with("_h1"))
      Emulate(cuda::vkv_block_table_f16_d128_h1, with_table);
    else if (name.ends_with("_h4"))
      Emulate(cuda::vkv_block_table_f16_d128_h4, with_table);
    else
      Emulate(cuda::vkv_block_table_f16_d128_h8, with_table);
    return Ok();
  };
  (void)cuda::LaunchDecode(command_of(pool, block_bytes, outputs[0]), spans, /*multiprocessors=*/16, place, run);
  reference::Attention(command_of(slots, kBlocksPerSlot * block_bytes, outputs[1]), spans);
  for (size_t i = 0; i < outputs[0].size(); ++i) {
    if (std::fabs(outputs[0][i] - outputs[1][i]) <= 4e-6f) continue;
    return Note("group " + std::to_string(query_heads / kv_heads) + ", output " + std::to_string(i) + " is wrong");
  }
}

void AppendOnce() {
  const auto cache_dtype = static_cast<Dtype>(Next() % 3);
  const auto row_dtype = static_cast<Dtype>(Next() % 3);
  const int heads = Pick({1, 2, 5});
  const int dim = Pick({1, 7, 64, 130});
  const auto head_bytes = static_cast<int64_t>(dim * ElementBytes(cache_dtype));
  const int64_t token_bytes = 2 * heads * head_bytes;  // K and V of a token side by side
  const int64_t slot_bytes = 64 * token_bytes;
  std::vector<Span> spans;
  int rows = 0;
  for (int slot = 0; slot < 4; ++slot) {
    spans.push_back({3 - slot, Pick({0, 1, 30}), Pick({0, 1, 5, 20}), rows});
    rows += spans.back().tokens;
  }
  const size_t rows_at = RoundUp(4 * slot_bytes, 256);
  const size_t count = static_cast<size_t>(std::max<int>(rows, spans.size())) * heads * dim;
  World ours;
  ours.bytes.resize(rows_at + 2 * count * 4 + 256, 0x5a);
  FillFloats(ours.at(rows_at), row_dtype, 2 * count);
  World theirs = ours;
  const auto command_of = [&](World& world) {
    AppendCommand command;
    command.keys = {world.at(0), slot_bytes, token_bytes, head_bytes, heads, dim};
    command.values = command.keys;
    command.values.address += heads * head_bytes;
    command.new_keys = world.at(rows_at);
    command.new_values = command.new_keys + count * ElementBytes(row_dtype);
    command.cache_dtype = cache_dtype;
    command.row_dtype = row_dtype;
    return command;
  };
  last_kernel = "vkv_append";
  if (Next() % 3 == 0) {  // as a captured step
    for (Span& span : spans) {
      span.tokens = std::min(span.tokens, 1);
      span.first_row = static_cast<int32_t>(&span - spans.data());
    }
    const cuda::StepList list = {reinterpret_cast<uint64_t>(spans.data()), static_cast<int32_t>(spans.size())};
    (void)cuda::LaunchAppend(command_of(ours), list, Run);
  } else {
    (void)cuda::LaunchAppend(command_of(ours), spans, Run);
  }
  reference::Append(command_of(theirs), spans);
  if (ours.bytes != theirs.bytes) Note("other bytes than the reference");
}

void CopyOnce() {
  const int64_t slot_tokens = 400;
  std::vector<Region> regions;
  int64_t bytes = 0;
  for (int r = Pick({1, 2, 70}); r > 0; --r) {
    const int64_t token_bytes = Pick({1, 6, 20, 32, 256});
    const auto slot_bytes = static_cast<int64_t>(RoundUp(slot_tokens * token_bytes, 16));
    regions.push_back({static_cast<uint64_t>(bytes), slot_bytes, token_bytes});
    bytes += 4 * slot_bytes;
  }
  World ours;
  ours.bytes.resize(bytes);
  for (uint8_t& byte : ours.bytes) byte = static_cast<uint8_t>(Next());
  World theirs = ours;
  std::vector<TokenCopy> copies;
  for (int c = Pick({1, 3, 100}); c > 0; --c) {  // from slots 0 and 1 to places of their own in slots 2 and 3
    const int tokens = Pick({0, 1, 3});
    copies.push_back({Pick({0, 1}), static_cast<int32_t>(Next() % 396), 2 + c % 2, c / 2 * 4, tokens});
  }
  if (copies.size() == 1) copies[0].tokens = 300;
  if (copies.size() == 1) copies[0].from_token = copies[0].to_token = 0;
  const auto at = [&](World& world) {
    std::vector<Region> placed = regions;
    for (Region& region : placed) region.address += world.at(0);
    return placed;
  };
  last_kernel = "vkv_copy";
  (void)cuda::LaunchCopy(at(ours), copies, Run);
  reference::CopyTokens(at(theirs), copies);
  if (ours.bytes != theirs.bytes) Note("other bytes than the reference");
}

// Packed rows to places in any order, at any address, with bytes between them that stay as they are.
void ScatterOnce() {
  const int width = Pick({1, 6, 20, 4096, 40'000});
  std::vector<ScatterRun> runs;
  uint32_t packed = 0;
  for (int count = width > 4096 ? Pick({1, 3}) : Pick({1, 2, 64, 254, 255, 300}); count > 0; --count) {
    runs.push_back({0, packed, static_cast<uint32_t>(width * Pick({1, 1, 3}))});
    packed += runs.back().bytes;
  }
  std::vector<size_t> order(runs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[Next() % i]);
  World source;
  source.bytes.resize(packed);
  for (uint8_t& byte : source.bytes) byte = static_cast<uint8_t>(Next());
  uint64_t end = 0;
  for (const size_t i : order) {
    runs[i].to = end + static_cast<uint64_t>(Pick({0, 0, 1, 16, 36}));
    end = runs[i].to + runs[i].bytes;
  }
  World ours;
  ours.bytes.resize(end, 0x5a);
  World theirs = ours;
  for (ScatterRun& run : runs) {
    std::memcpy(theirs.bytes.data() + run.to, source.bytes.data() + run.from, run.bytes);
    run.to += ours.at(0);
  }
  last_kernel = "vkv_scatter";
  (void)cuda::LaunchScatter(source.at(0), runs, Run);
  if (ours.bytes != theirs.bytes) Note("other bytes than the reference");
}

}  // namespace

int main(int argc, char** argv) {
  return RunRounds(argc, argv, [] {
    AppendOnce();
    CopyOnce();
    ScatterOnce();
    AttendOnce(/*is_decoding=*/true);
    AttendOnce(/*is_decoding=*/true);
    AttendOnce(/*is_decoding=*/false);
    if (Next() % 3 == 0) AttendOnce(/*is_decoding=*/true, kManySplitsTokens);
    AttendThroughATable();
  });
}
