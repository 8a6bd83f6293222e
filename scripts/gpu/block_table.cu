// The decode kernels' own source over a block table: only Place differs. For the comparison in gpu-check
// only.
#include "kernels/cuda/decode_inl.h"
#include "scripts/gpu/block_table.h"

namespace vkv::kernels::cuda {

// The place of one token in the pool. K and V lie alike, so one entry of the table is for both.
class PlaceInBlock {
 public:
  using Parameters = BlockTableParameters;
  PlaceInBlock() = default;
  __device__ PlaceInBlock(const BlockTableParameters& parameters, int slot, int token, bool is_there)
      : block_(is_there ? BlockOf(parameters, slot, token) : 0), token_(token % kBlockTokens) {}
  __device__ uint64_t HeadOf(const Tensor& pool, int head) const { return HeadAt(pool, block_, token_, head); }

 private:
  __device__ static int BlockOf(const BlockTableParameters& parameters, int slot, int token) {
    const int32_t* const table = reinterpret_cast<const int32_t*>(parameters.table);
    return LoadPack<int32_t, 1>(reinterpret_cast<uint64_t>(table +
                                                           static_cast<int64_t>(slot) * parameters.blocks_per_slot +
                                                           token / kBlockTokens))
        .element[0];
  }

  int block_ = 0;
  int token_ = 0;
};

#define VKV_BLOCK_TABLE(name, type, elements, dim, heads)                                               \
  VKV_KERNEL_FOR(kDecodeThreads, DecodeBlocks(sizeof(type), dim, heads))                                \
  vkv_block_table_##name##_d##dim##_h##heads(const __grid_constant__ BlockTableParameters parameters) { \
    Decode<PlaceInBlock, type, elements, dim, heads>(parameters);                                       \
  }
VKV_BLOCK_TABLE(f16, HalfBits, 8, 128, 1)
VKV_BLOCK_TABLE(f16, HalfBits, 8, 128, 4)
VKV_BLOCK_TABLE(f16, HalfBits, 8, 128, 8)

}  // namespace vkv::kernels::cuda
