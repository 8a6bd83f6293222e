// SimulatedKernel: one kernel as the simulated device runs it: how to check a launch, which memory it uses, and a
// function that computes its results on the CPU. The device gets a table of them; it has none of its own.
#ifndef VKV_MOCK_SIMULATED_KERNEL_H_
#define VKV_MOCK_SIMULATED_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mock/stream_model.h"

namespace vkv::mock {

struct LaunchArguments {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
  const void* parameter = nullptr;  // the kernel's one parameter, a struct
};

struct ListUse {
  size_t offset = 0;
  uint64_t bytes = 0;  // 0: there is none
};

class SimulatedKernel {
 public:
  virtual ~SimulatedKernel() = default;
  virtual size_t parameter_bytes() const = 0;
  // Whether grid, block and shared memory are those that the parameter needs.
  virtual bool IsLaunchable(const LaunchArguments& launch) const = 0;
  // Every range that the kernel uses, given the current content of its lists.
  virtual std::vector<Touch> TouchesOf(const void* parameter) const = 0;
  // Where the parameter has the address of a list that the kernel reads when it runs, null for none, and the
  // list's length.
  virtual ListUse ListOf(const void* /*parameter*/) const { return {}; }
  // Computes the kernel's results. Pre: all memory that it uses is accessible.
  virtual void Run(const void* parameter) const = 0;
};

// The kernel of that name, or null.
using FindSimulatedKernel = std::shared_ptr<const SimulatedKernel> (*)(const char* name);

}  // namespace vkv::mock

#endif  // VKV_MOCK_SIMULATED_KERNEL_H_
