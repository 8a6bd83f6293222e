// Copies of a block's bytes, by all of its threads: what copies within a cache and copies of side tensors' rows share.
// Device code only.
#ifndef VKV_KERNELS_CUDA_COPY_INL_H_
#define VKV_KERNELS_CUDA_COPY_INL_H_

#include "kernels/cuda/device.h"

namespace vkv::kernels::cuda {

// Four loads in flight for each thread.
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

// 16 bytes at a time where addresses and length allow it; narrower where not.
__device__ inline void CopyBytes(uint64_t to, uint64_t from, int64_t bytes) {
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

#endif  // VKV_KERNELS_CUDA_COPY_INL_H_
