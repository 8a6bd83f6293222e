// PagedWorld: the same K and V twice in device memory, in contiguous slots and in blocks scattered at random over a
// pool as large, and decode attention over either, by the package's own launches and PTX.
//
// Slots of every length are cut from one stretch of tokens, so one table serves all shapes. A thread of its own
// process; nothing is given back.
#ifndef VKV_SCRIPTS_GPU_PAGED_WORLD_H_
#define VKV_SCRIPTS_GPU_PAGED_WORLD_H_

#include <map>
#include <span>

#include "gpu.h"
#include "kernels/cuda/launches.h"
#include "scripts/gpu/block_table.h"

namespace vkv::probe {

using kernels::AttentionCommand;
using kernels::Dtype;
using kernels::Span;

enum class Placing { kContiguous, kBlockTable };

class PagedWorld {
 public:
  static constexpr int kKvHeads = 8;
  static constexpr int kDim = 128;
  static constexpr int64_t kTokenBytes = kKvHeads * kDim * 2;  // of K, and as much of V: float16
  static constexpr int kMostRows = 64;
  static constexpr int kMostQueryHeads = 64;

  // Maps and fills everything: room for at most `tokens` tokens, fewer where 2/5 of the free memory is less.
  PagedWorld(const Gpu& gpu, int64_t tokens);

  int64_t tokens() const { return tokens_; }
  // Bytes read and written per second by the device's own copy of all K.
  double copy_bytes_per_second() const { return copy_bytes_per_second_; }

  // Queues attention of one query token for each of `spans`, over slots of `slot_tokens` tokens. Rows are float32.
  void Attend(Placing placing, int query_heads, int64_t slot_tokens, std::span<const Span> spans);
  void Synchronize() const;
  // What the last Attend wrote, [row, query head, dim].
  std::vector<float> Output(int rows, int query_heads) const;
  // One row and KV head by the CPU, over the K and V in the contiguous slot: [query head of the group, dim].
  std::vector<float> Reference(int query_heads, int64_t slot_tokens, const Span& span, int kv_head) const;

 private:
  CUdeviceptr Map(size_t bytes) const;
  void LoadModules();
  void FillContiguous();
  void MeasureCopy();
  void Scatter();
  AttentionCommand Command(Placing placing, int query_heads, int64_t slot_tokens) const;
  Status Launch(const kernels::cuda::Launch& launch, Placing placing, int64_t slot_tokens);

  const Gpu& gpu_;
  CUstream stream_ = nullptr;
  int multiprocessors_ = 0;
  int64_t tokens_ = 0;
  double copy_bytes_per_second_ = 0;
  CUmodule package_ = nullptr;  // the package's kernels
  CUmodule variant_ = nullptr;  // those with a block table
  std::map<std::string, CUfunction> functions_;
  CUdeviceptr keys_ = 0, values_ = 0;            // [token, head, dim]
  CUdeviceptr pool_keys_ = 0, pool_values_ = 0;  // [block, token, head, dim]
  CUdeviceptr table_ = 0;                        // of every 16 tokens of keys_: the block in the pool
  CUdeviceptr queries_ = 0, output_ = 0;
  kernels::cuda::Workspace workspace_;
  std::vector<float> host_queries_;
};

}  // namespace vkv::probe

#endif  // VKV_SCRIPTS_GPU_PAGED_WORLD_H_
