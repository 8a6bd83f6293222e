#include "scripts/gpu/paged_world.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>

#include "kernels/float16.h"
#include "kernels/reference.h"

namespace vkv::probe {
namespace {

using namespace kernels::cuda;
using kernels::Half;

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr size_t kQueryBytes = sizeof(float) * PagedWorld::kMostRows * PagedWorld::kMostQueryHeads * PagedWorld::kDim;
constexpr int64_t kPatternTokens = 8191;  // no multiple of a block, so that blocks differ
constexpr int kCopies = 10;

// A file beside this program, ended by a zero as the driver wants PTX.
std::string ReadBeside(const char* name) {
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) {
    Line("failed")
        .Text("call", "read")
        .Text("result", path.string() + " is not there: scripts/gpu-bundle puts it there");
    std::_Exit(1);
  }
  return text;
}

float NextFloat(std::mt19937& random) { return static_cast<float>(random() % 4096) / 2048 - 1; }

}  // namespace

PagedWorld::PagedWorld(const Gpu& gpu, int64_t tokens) : gpu_(gpu), stream_(gpu.CreateStream()) {
  Must(gpu.api().cuDeviceGetAttribute(&multiprocessors_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu.device()),
       "cuDeviceGetAttribute");
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  Must(gpu.api().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  const auto room = static_cast<int64_t>(free_bytes / 5 * 2) / (2 * kTokenBytes);
  tokens_ = std::min(tokens, room) / kBlockTokens * kBlockTokens;
  LoadModules();
  for (CUdeviceptr* tensor : {&keys_, &values_, &pool_keys_, &pool_values_}) *tensor = Map(tokens_ * kTokenBytes);
  table_ = Map(tokens_ / kBlockTokens * sizeof(int32_t));
  queries_ = Map(kQueryBytes);
  output_ = Map(kQueryBytes);
  workspace_ = {Map(kWorkspaceBytes), kWorkspaceBytes};
  FillContiguous();
  MeasureCopy();
  Scatter();
}

CUdeviceptr PagedWorld::Map(size_t bytes) const {
  const size_t pages = (bytes + gpu_.page_bytes() - 1) / gpu_.page_bytes();
  const CUdeviceptr address = gpu_.Reserve(pages * gpu_.page_bytes());
  gpu_.MapPages(address, static_cast<int>(pages));
  return address;
}

void PagedWorld::LoadModules() {
  Must(gpu_.api().cuModuleLoadDataEx(&package_, ReadBeside("kernels-sm80.ptx").c_str(), 0, nullptr, nullptr),
       "cuModuleLoadDataEx of kernels-sm80.ptx");
  Must(gpu_.api().cuModuleLoadDataEx(&variant_, ReadBeside("block-table.ptx").c_str(), 0, nullptr, nullptr),
       "cuModuleLoadDataEx of block-table.ptx");
}

void PagedWorld::FillContiguous() {
  std::mt19937 random(1);
  const int64_t period = std::min(kPatternTokens, tokens_ / 2 - 1);
  std::vector<Half> pattern(period * kTokenBytes / sizeof(Half));
  for (const CUdeviceptr tensor : {keys_, values_}) {
    for (Half& element : pattern) element = kernels::ToHalf(NextFloat(random));
    Must(gpu_.api().cuMemcpyHtoD(tensor, pattern.data(), period * kTokenBytes), "cuMemcpyHtoD");
    int64_t filled = period;
    while (filled < tokens_) {
      const int64_t more = std::min(filled, tokens_ - filled);
      Must(gpu_.api().cuMemcpyDtoDAsync(tensor + filled * kTokenBytes, tensor, more * kTokenBytes, stream_),
           "cuMemcpyDtoDAsync");
      filled += more;
    }
  }
  host_queries_.resize(kQueryBytes / sizeof(float));
  for (float& element : host_queries_) element = NextFloat(random);
  Must(gpu_.api().cuMemcpyHtoD(queries_, host_queries_.data(), kQueryBytes), "cuMemcpyHtoD");
  Synchronize();
}

void PagedWorld::MeasureCopy() {
  const auto copy = [&] {
    Must(gpu_.api().cuMemcpyDtoDAsync(pool_keys_, keys_, tokens_ * kTokenBytes, stream_), "cuMemcpyDtoDAsync");
  };
  copy();
  Synchronize();
  const double us = TimeUs([&] {
    for (int n = 0; n < kCopies; ++n) copy();
    Synchronize();
  });
  copy_bytes_per_second_ = 2.0 * kCopies * tokens_ * kTokenBytes / us * 1e6;
}

void PagedWorld::Scatter() {
  std::vector<int32_t> table(tokens_ / kBlockTokens);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(2));
  constexpr int64_t kBlockBytes = kBlockTokens * kTokenBytes;
  for (size_t block = 0; block < table.size(); ++block) {
    for (const auto& [pool, tensor] : {std::pair{pool_keys_, keys_}, {pool_values_, values_}}) {
      Must(gpu_.api().cuMemcpyDtoDAsync(pool + table[block] * kBlockBytes, tensor + block * kBlockBytes, kBlockBytes,
                                        stream_),
           "cuMemcpyDtoDAsync");
    }
  }
  Must(gpu_.api().cuMemcpyHtoD(table_, table.data(), table.size() * sizeof(int32_t)), "cuMemcpyHtoD");
  Synchronize();
}

AttentionCommand PagedWorld::Command(Placing placing, int query_heads, int64_t slot_tokens) const {
  const bool is_contiguous = placing == Placing::kContiguous;
  const int64_t slot_bytes = (is_contiguous ? slot_tokens : kBlockTokens) * kTokenBytes;
  AttentionCommand command;
  command.keys = {is_contiguous ? keys_ : pool_keys_, slot_bytes, kTokenBytes, kDim * sizeof(Half), kKvHeads, kDim};
  command.values = command.keys;
  command.values.address = is_contiguous ? values_ : pool_values_;
  command.queries = queries_;
  command.output = output_;
  command.cache_dtype = Dtype::kFloat16;
  command.row_dtype = Dtype::kFloat32;
  command.query_heads = query_heads;
  command.scale = 1;  // scores far apart, so that a wrong token is seen
  return command;
}

void PagedWorld::Attend(Placing placing, int query_heads, int64_t slot_tokens, std::span<const Span> spans) {
  const auto submit = [&](const kernels::cuda::Launch& launch) { return Launch(launch, placing, slot_tokens); };
  const Status status =
      LaunchDecode(Command(placing, query_heads, slot_tokens), spans, multiprocessors_, workspace_, submit);
  if (status.ok()) return;
  Line("failed").Text("call", status.call).Result("result", static_cast<CUresult>(status.result));
  std::_Exit(1);
}

// As LaunchDecode wants it; with a block table, the variant of the decode kernel and its parameters in their place.
Status PagedWorld::Launch(const kernels::cuda::Launch& launch, Placing placing, int64_t slot_tokens) {
  std::string name = launch.name;
  void* parameters = const_cast<void*>(launch.parameters);
  BlockTableParameters with_table;
  const bool is_variant = placing == Placing::kBlockTable && name.starts_with(kDecodePrefix);
  if (is_variant) {
    name.replace(0, sizeof(kDecodePrefix) - 1, kBlockTablePrefix);
    static_cast<DecodeParameters&>(with_table) = *static_cast<const DecodeParameters*>(launch.parameters);
    with_table.table = table_;
    with_table.blocks_per_slot = static_cast<int32_t>(slot_tokens / kBlockTokens);
    with_table.pool_blocks = static_cast<int32_t>(tokens_ / kBlockTokens);
    parameters = &with_table;
  }
  CUfunction& function = functions_[name];
  if (function == nullptr) {
    Must(gpu_.api().cuModuleGetFunction(&function, is_variant ? variant_ : package_, name.c_str()),
         "cuModuleGetFunction");
  }
  Must(gpu_.api().cuLaunchKernel(function, launch.grid.x, launch.grid.y, launch.grid.z, launch.threads, 1, 1,
                                 launch.shared_bytes, stream_, &parameters, nullptr),
       "cuLaunchKernel");
  return Ok();
}

void PagedWorld::Synchronize() const { Must(gpu_.api().cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

std::vector<float> PagedWorld::Output(int rows, int query_heads) const {
  std::vector<float> output(size_t{1} * rows * query_heads * kDim);
  Must(gpu_.api().cuMemcpyDtoH(output.data(), output_, output.size() * sizeof(float)), "cuMemcpyDtoH");
  return output;
}

std::vector<float> PagedWorld::Reference(int query_heads, int64_t slot_tokens, const Span& span, int kv_head) const {
  const int64_t bytes = (span.length + 1) * kTokenBytes;
  std::vector<uint8_t> keys(bytes);
  std::vector<uint8_t> values(bytes);
  const int64_t at = span.slot * slot_tokens * kTokenBytes;
  Must(gpu_.api().cuMemcpyDtoH(keys.data(), keys_ + at, bytes), "cuMemcpyDtoH");
  Must(gpu_.api().cuMemcpyDtoH(values.data(), values_ + at, bytes), "cuMemcpyDtoH");
  const int group = query_heads / kKvHeads;
  std::vector<float> output(size_t{1} * group * kDim);
  AttentionCommand command = Command(Placing::kContiguous, group, slot_tokens);
  command.keys.heads = command.values.heads = 1;
  command.keys.address = reinterpret_cast<uint64_t>(keys.data()) + kv_head * command.keys.head_bytes;
  command.values.address = reinterpret_cast<uint64_t>(values.data()) + kv_head * command.values.head_bytes;
  command.queries =
      reinterpret_cast<uint64_t>(host_queries_.data() + (span.first_row * query_heads + kv_head * group) * kDim);
  command.output = reinterpret_cast<uint64_t>(output.data());
  const Span alone = {0, span.length, 1, 0};
  kernels::reference::Attention(command, {&alone, 1});
  return output;
}

}  // namespace vkv::probe
