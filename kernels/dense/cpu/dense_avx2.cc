// The dense inner loops for AVX2 with FMA and F16C.
#include <bit>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/target.h"
#include "kernels/dense/cpu/dense.h"
#include "kernels/float16.h"

#if defined(__x86_64__)
#include <immintrin.h>

VKV_TARGET_BEGIN("avx2,fma,f16c")

namespace vkv::kernels {
namespace {
#include "kernels/cpu/vectors_avx2_inl.h"

#include "kernels/cpu/common_inl.h"

#include "kernels/dense/cpu/product_inl.h"

#include "kernels/dense/cpu/panel_rows_inl.h"

#include "kernels/dense/cpu/rows_inl.h"
}  // namespace
}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const DenseKernels* Avx2Dense() {
  static const DenseKernels kKernels = {"avx2", Multiply, Normalize, Rotate, Gate, Cap, ToFloats, Avx2Int8()};
  return Avx2Kernels() == nullptr ? nullptr : &kKernels;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::DenseKernels* vkv::kernels::Avx2Dense() { return nullptr; }
#endif
