// The dense inner loops for AVX-512, where the compiler has it.
#include <bit>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/target.h"
#include "kernels/dense/cpu/dense.h"
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

#include "kernels/dense/cpu/product_inl.h"

#include "kernels/dense/cpu/panel_tiles_inl.h"

#include "kernels/dense/cpu/rows_inl.h"
}  // namespace
}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const DenseKernels* Avx512Dense() {
  if (Avx512Kernels() == nullptr) return nullptr;
  static const DenseKernels kKernels = {"avx512", Multiply, Normalize, Rotate,
                                        Gate,     Cap,      ToFloats,  VnniInt8() == nullptr ? Avx2Int8() : VnniInt8()};
  return &kKernels;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::DenseKernels* vkv::kernels::Avx512Dense() { return nullptr; }
#endif
