#include "kernels/cuda/row_scatter_cuda.h"

#include <string>

#include "kernels/cuda/launches.h"

namespace vkv::kernels::cuda {
namespace {

constexpr char kModule[] = "scatter";
constexpr vkv::cuda::ModuleKernel kKernel = {"vkv_scatter", /*uses_shared_memory=*/false};

}  // namespace

Status CudaRowScatter::Open(vkv::cuda::DriverCuda& driver, const void* image, std::unique_ptr<RowScatter>& scatter) {
  std::string log;
  VKV_RETURN_IF_ERROR(driver.LoadModule(kModule, image, {&kKernel, 1}, log));
  const vkv::cuda::Module* const module = driver.FindModule(kModule);
  const vkv::cuda::CUfunction kernel = module == nullptr ? nullptr : module->Find(kKernel.name);
  if (kernel == nullptr) return Fail(Code::kInternal, "CudaRowScatter::Open");
  scatter.reset(new CudaRowScatter(driver, kernel));
  return Ok();
}

Status CudaRowScatter::Scatter(uint64_t source, std::span<const PlacedRows> rows, Stream stream) {
  runs_.clear();
  for (const PlacedRows& some : rows) runs_.push_back({some.to, some.from, some.bytes});
  return LaunchScatter(source, runs_, [&](const Launch& launch) {
    const vkv::cuda::LaunchSize size = {
        {launch.grid.x, launch.grid.y, launch.grid.z}, launch.threads, launch.shared_bytes};
    return driver_.LaunchKernel(kernel_, size, stream, launch.parameters);
  });
}

}  // namespace vkv::kernels::cuda
