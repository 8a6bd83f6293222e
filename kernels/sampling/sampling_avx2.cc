// The inner loops of sampling for AVX2 with FMA.
#include <bit>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/target.h"
#include "kernels/float16.h"
#include "kernels/sampling/sampling.h"

#if defined(__x86_64__)
#include <immintrin.h>

VKV_TARGET_BEGIN("avx2,fma,f16c")

namespace vkv::kernels {
namespace {
#include "kernels/cpu/vectors_avx2_inl.h"

#include "kernels/sampling/sampling_inl.h"
}  // namespace
}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const SamplingKernels* Avx2Sampling() {
  static constexpr SamplingKernels kKernels = {"avx2", Largest, Weigh, Gather};
  return Avx2Kernels() == nullptr ? nullptr : &kKernels;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::SamplingKernels* vkv::kernels::Avx2Sampling() { return nullptr; }
#endif
