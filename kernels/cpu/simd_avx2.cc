// The inner loops for AVX2 with FMA and F16C, which x86 processors have had since 2013.
#include <bit>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/target.h"
#include "kernels/float16.h"

#if defined(__x86_64__)
#include <immintrin.h>

VKV_TARGET_BEGIN("avx2,fma,f16c")

namespace vkv::kernels {
namespace {
#include "kernels/cpu/vectors_avx2_inl.h"

#include "kernels/cpu/common_inl.h"

#include "kernels/cpu/decode_inl.h"

#include "kernels/cpu/prefill_inl.h"
}  // namespace
}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const SimdKernels* Avx2Kernels() {
  static constexpr SimdKernels kKernels = {"avx2", Decode, Merge, Prefill, Convert};
  // F16C came before AVX2; not every compiler can ask for it by name.
  const bool is_there = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return is_there ? &kKernels : nullptr;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::SimdKernels* vkv::kernels::Avx2Kernels() { return nullptr; }
#endif
