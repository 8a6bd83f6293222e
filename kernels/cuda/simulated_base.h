// Simulated: shared by the kernels' stand-ins on the simulated device: their parameter by its type.
#ifndef VKV_KERNELS_CUDA_SIMULATED_BASE_H_
#define VKV_KERNELS_CUDA_SIMULATED_BASE_H_

#include <cstdint>
#include <vector>

#include "mock/simulated_kernel.h"

namespace vkv::kernels::cuda {

inline bool IsSize(const mock::LaunchArguments& launch, int64_t x, int64_t y, int64_t z, int threads,
                   int shared_bytes = 0) {
  return launch.grid[0] == x && launch.grid[1] == y && launch.grid[2] == z &&
         launch.block[0] == static_cast<uint32_t>(threads) && launch.block[1] == 1 && launch.block[2] == 1 &&
         launch.shared_bytes == static_cast<uint32_t>(shared_bytes);
}

// A kernel with one parameter of this type. IsPossible checks that its counts are within bounds, before anything else.
template <typename Parameters>
class Simulated : public mock::SimulatedKernel {
 public:
  size_t parameter_bytes() const final { return sizeof(Parameters); }
  bool IsLaunchable(const mock::LaunchArguments& launch) const final {
    const auto& parameters = Of(launch.parameter);
    return IsPossible(parameters) && HasSize(launch, parameters);
  }
  std::vector<mock::Touch> TouchesOf(const void* parameter) const final { return Touches(Of(parameter)); }
  mock::ListUse ListOf(const void* parameter) const final { return List(Of(parameter)); }
  void Run(const void* parameter) const final { RunIt(Of(parameter)); }

 protected:
  virtual mock::ListUse List(const Parameters& /*parameters*/) const { return {}; }
  virtual bool IsPossible(const Parameters& parameters) const = 0;
  virtual bool HasSize(const mock::LaunchArguments& launch, const Parameters& parameters) const = 0;
  virtual std::vector<mock::Touch> Touches(const Parameters& parameters) const = 0;
  virtual void RunIt(const Parameters& parameters) const = 0;

 private:
  static const Parameters& Of(const void* parameter) { return *static_cast<const Parameters*>(parameter); }
};

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_SIMULATED_BASE_H_
