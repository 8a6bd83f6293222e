// Copy: ranges of tokens between slots, in all regions: one launch for all tensors of many sequences.
//
// Grid (pieces of 64 KiB, regions, copies): a block copies one piece, 16 bytes per thread and load, four loads in
// flight, where addresses and length allow it; narrower where not. Pieces past the end of a shorter range do nothing.
#include "kernels/cuda/device.h"

namespace vkv::kernels::cuda {

template <typename Word>
__device__ inline void CopyWords(uint64_t to, uint64_t from, int64_t bytes) {
  const auto* const source = reinterpret_cast<const Word*>(from);
  auto* const target = reinterpret_cast<Word*>(to);
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t step = blockDim.x;
  int64_t i = threadIdx.x;
  for (; i + 3 * step < words; i += 4 * step) {
    const Word a = source[i];
    const Word b = source[i + step];
    const Word c = source[i + 2 * step];
    const Word d = source[i + 3 * step];
    target[i] = a;
    target[i + step] = b;
    target[i + 2 * step] = c;
    target[i + 3 * step] = d;
  }
  for (; i < words; i += step) target[i] = source[i];
}

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
  const uint64_t alike = from | to | static_cast<uint64_t>(bytes);
  if (alike % 16 == 0)
    CopyWords<uint4>(to, from, bytes);
  else if (alike % 4 == 0)
    CopyWords<unsigned>(to, from, bytes);
  else if (alike % 2 == 0)
    CopyWords<unsigned short>(to, from, bytes);
  else
    CopyWords<unsigned char>(to, from, bytes);
}

}  // namespace vkv::kernels::cuda
