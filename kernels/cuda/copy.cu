// Copy: ranges of tokens between slots, in all regions: one launch for all tensors of many sequences.
//
// Grid (pieces of 64 KiB, regions, copies): a block copies one piece. Pieces past the end of a shorter range do
// nothing.
#include "kernels/cuda/copy_inl.h"

namespace vkv::kernels::cuda {

VKV_KERNEL vkv_copy(const __grid_constant__ CopyParameters parameters) {
  const Region& region = parameters.regions[blockIdx.y];
  const TokenCopy& copy = parameters.copies[blockIdx.z];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kCopyPieceBytes;
  const int64_t left = copy.tokens * region.token_bytes - begin;
  if (left <= 0) return;
  const int64_t bytes = left < kCopyPieceBytes ? left : kCopyPieceBytes;
  const uint64_t from =
      region.address + copy.from_slot * region.slot_bytes + copy.from_token * region.token_bytes + begin;
  const uint64_t to = region.address + copy.to_slot * region.slot_bytes + copy.to_token * region.token_bytes + begin;
  CopyBytes(to, from, bytes);
}

}  // namespace vkv::kernels::cuda
