// The inner loops for AVX-512, where the compiler has it.
#include <bit>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/target.h"
#include "kernels/float16.h"

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

#include "kernels/cpu/common_inl.h"

#include "kernels/cpu/decode_inl.h"

#include "kernels/cpu/prefill_inl.h"
}  // namespace
}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const SimdKernels* Avx512Kernels() {
  static constexpr SimdKernels kKernels = {"avx512", Decode, Merge, Prefill, Convert};
  const bool is_there = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        Avx2Kernels() != nullptr;
  return is_there ? &kKernels : nullptr;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::SimdKernels* vkv::kernels::Avx512Kernels() { return nullptr; }
#endif
