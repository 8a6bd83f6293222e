// SimulatedKernel: what the simulated device knows of one kernel: how to check a launch, which memory it touches, and a
// function that does its work on the CPU. A table of them is handed to the device; it has none of its own.
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
  // Every range the kernel uses, with what its lists hold now.
  virtual std::vector<Touch> TouchesOf(const void* parameter) const = 0;
  // Where in the parameter there is the address of a list that the kernel reads when it runs, null for none, and the
  // list's length.
  virtual ListUse ListOf(const void* /*parameter*/) const { return {}; }
  // Does what the kernel does; all it touches is accessible.
  virtual void Run(const void* parameter) const = 0;
};

// The kernel of that name, or null.
using FindSimulatedKernel = std::shared_ptr<const SimulatedKernel> (*)(const char* name);

}  // namespace vkv::mock

#endif  // VKV_MOCK_SIMULATED_KERNEL_H_
