// Simulated: every CUDA kernel's stand-in on the simulated device: computes the kernel's results in the obvious way on
// the CPU, lists the memory that it uses, and compares each launch with launches.h's rules for grid, block and
// shared memory.
#ifndef VKV_KERNELS_CUDA_SIMULATED_H_
#define VKV_KERNELS_CUDA_SIMULATED_H_

#include <memory>

#include "mock/simulated_kernel.h"

namespace vkv::kernels::cuda {

// Null when no kernel has that name.
std::shared_ptr<const mock::SimulatedKernel> FindSimulated(const char* name);

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_SIMULATED_H_
