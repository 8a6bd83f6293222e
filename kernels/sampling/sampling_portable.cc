// The inner loops of sampling for any machine, and the choice among them all.
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/float16.h"
#include "kernels/sampling/sampling.h"

namespace vkv::kernels {
namespace {
#include "kernels/cpu/vectors_portable_inl.h"

#include "kernels/sampling/sampling_inl.h"
}  // namespace

const SamplingKernels* PortableSampling() {
  static constexpr SamplingKernels kKernels = {"portable", Largest, Weigh, Gather};
  return &kKernels;
}

const SamplingKernels* ChooseSampling(const char* wanted) {
  const SamplingKernels* chosen = nullptr;
  for (const SamplingKernels* kernels : {Avx512Sampling(), Avx2Sampling(), PortableSampling()}) {
    if (kernels == nullptr) continue;
    if (wanted != nullptr && std::strcmp(wanted, kernels->name) == 0) return kernels;
    if (chosen == nullptr) chosen = kernels;
  }
  return chosen;
}

}  // namespace vkv::kernels
