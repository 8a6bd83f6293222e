// The inner loops of sampling for AVX-512, where the compiler has it.
#include <bit>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/target.h"
#include "kernels/float16.h"
#include "kernels/sampling/sampling.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if !defined(__clang__)
// GCC's own header leaves the unused source of its intrinsics uninitialized (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

VKV_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

namespace vkv::kernels {
namespace {
#include "kernels/cpu/vectors_avx512_inl.h"

#include "kernels/sampling/sampling_inl.h"
}  // namespace
}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const SamplingKernels* Avx512Sampling() {
  static constexpr SamplingKernels kKernels = {"avx512", Largest, Weigh, Gather};
  return Avx512Kernels() == nullptr ? nullptr : &kKernels;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::SamplingKernels* vkv::kernels::Avx512Sampling() { return nullptr; }
#endif
