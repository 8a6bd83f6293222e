// The stand-ins of gpu-check's block-table kernels on the simulated device. The package has neither.
#ifndef VKV_TEST_NATIVE_SIMULATED_BLOCK_TABLE_H_
#define VKV_TEST_NATIVE_SIMULATED_BLOCK_TABLE_H_

#include <memory>

#include "mock/simulated_kernel.h"

namespace vkv::kernels::cuda {

// Null for a name that no block-table kernel has.
std::shared_ptr<const mock::SimulatedKernel> FindSimulatedBlockTable(const char* name);

}  // namespace vkv::kernels::cuda

#endif  // VKV_TEST_NATIVE_SIMULATED_BLOCK_TABLE_H_
