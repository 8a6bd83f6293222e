// BlockTable: the decode kernels once more, reading K and V through a block table, for the comparison that gpu-check
// makes.
//
// A pool is blocks of kBlockTokens tokens, [block, token, head, dim]: in the command's tensors slot_bytes are those of
// a block. vkv_block_table_TYPE_dDIM_hHEADS is launched as vkv_decode_TYPE_dDIM_hHEADS is, and takes the table besides;
// vkv_merge sums up for both. Nothing of it is in the package. Compiled as C++ and as CUDA C++.
#ifndef VKV_SCRIPTS_GPU_BLOCK_TABLE_H_
#define VKV_SCRIPTS_GPU_BLOCK_TABLE_H_

#include "kernels/cuda/parameters.h"

namespace vkv::kernels::cuda {

inline constexpr int kBlockTokens = 16;
inline constexpr char kDecodePrefix[] = "vkv_decode_";
inline constexpr char kBlockTablePrefix[] = "vkv_block_table_";

struct BlockTableParameters : DecodeParameters {
  uint64_t table = 0;  // [slot, blocks_per_slot] of int32: the block in the pool of every 16 tokens of a slot
  int32_t blocks_per_slot = 0;
  int32_t pool_blocks = 0;  // what the simulated device holds the table against
};
static_assert(sizeof(BlockTableParameters) <= kMostParameterBytes);

}  // namespace vkv::kernels::cuda

#endif  // VKV_SCRIPTS_GPU_BLOCK_TABLE_H_
