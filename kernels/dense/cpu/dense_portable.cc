// The dense inner loops for any machine, and the choice among them all.
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/dense/cpu/dense.h"
#include "kernels/float16.h"

namespace vkv::kernels {
namespace {
#include "kernels/cpu/vectors_portable_inl.h"

#include "kernels/cpu/common_inl.h"

#include "kernels/dense/cpu/product_inl.h"

#include "kernels/dense/cpu/panel_rows_inl.h"

#include "kernels/dense/cpu/rows_inl.h"
}  // namespace

const DenseKernels* PortableDense() {
  static const DenseKernels kKernels = {"portable", Multiply, Normalize, Rotate, Gate, Cap, ToFloats, PortableInt8()};
  return &kKernels;
}

const DenseKernels* ChooseDense(const char* wanted) {
  const DenseKernels* chosen = nullptr;
  for (const DenseKernels* kernels : {Avx512Dense(), Avx2Dense(), PortableDense()}) {
    if (kernels == nullptr) continue;
    if (wanted != nullptr && std::strcmp(wanted, kernels->name) == 0) return kernels;
    if (chosen == nullptr) chosen = kernels;
  }
  return chosen;
}

}  // namespace vkv::kernels
