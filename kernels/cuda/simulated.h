// Simulated: every CUDA kernel's stand-in on the simulated device: does what the kernel does, in the obvious way, on
// the CPU; says what memory that touches; and holds each launch against launches.h's own rules of grid, block and
// shared memory.
#ifndef VKV_KERNELS_CUDA_SIMULATED_H_
#define VKV_KERNELS_CUDA_SIMULATED_H_

#include <memory>

#include "mock/simulated_kernel.h"

namespace vkv::kernels::cuda {

// Null for a name that no kernel has.
std::shared_ptr<const mock::SimulatedKernel> FindSimulated(const char* name);

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_SIMULATED_H_
