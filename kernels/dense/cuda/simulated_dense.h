// Simulated dense: the stand-ins of the dense kernels on the simulated device; used by simulated.h.
#ifndef VKV_KERNELS_DENSE_CUDA_SIMULATED_DENSE_H_
#define VKV_KERNELS_DENSE_CUDA_SIMULATED_DENSE_H_

#include <memory>
#include <string>

#include "mock/simulated_kernel.h"

namespace vkv::kernels::cuda {

// Null when no dense kernel has that name.
std::shared_ptr<const mock::SimulatedKernel> FindSimulatedDense(const std::string& name);

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_DENSE_CUDA_SIMULATED_DENSE_H_
