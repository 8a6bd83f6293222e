// The inner loops for any machine, and the choice among them all.
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/cpu/simd.h"
#include "kernels/float16.h"

namespace vkv::kernels {
namespace {
#include "kernels/cpu/vectors_portable_inl.h"

#include "kernels/cpu/common_inl.h"

#include "kernels/cpu/decode_inl.h"

#include "kernels/cpu/prefill_inl.h"
}  // namespace

const SimdKernels* PortableKernels() {
  static constexpr SimdKernels kKernels = {"portable", Decode, Merge, Prefill, Convert};
  return &kKernels;
}

const SimdKernels* ChooseSimd(const char* wanted) {
  const SimdKernels* chosen = nullptr;
  for (const SimdKernels* kernels : {Avx512Kernels(), Avx2Kernels(), PortableKernels()}) {
    if (kernels == nullptr) continue;
    if (wanted != nullptr && std::strcmp(wanted, kernels->name) == 0) return kernels;
    if (chosen == nullptr) chosen = kernels;
  }
  return chosen;
}

}  // namespace vkv::kernels
