#include "kernels/cuda/kernel_launcher.h"

#include <vector>

#include "kernels/dense/cuda/dense_parameters.h"

namespace vkv::kernels::cuda {
namespace {

struct NamedKernel {
  std::string name;
  bool uses_shared_memory = false;
};

std::vector<NamedKernel> NameKernels() {
  std::vector<NamedKernel> kernels;
  for (const char* name :
       {"append", "copy", "merge", "normalize", "rotate", "gate", "cap", "gather", "narrow", "bias"}) {
    kernels.push_back({std::string("vkv_") + name});
  }
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16}) {
    const std::string type = NameOf(dtype);
    for (const int dim : kDecodeDims) {
      for (const int heads : kDecodeHeads) {
        if (dim == kMostDim && heads == 8) continue;
        kernels.push_back({"vkv_decode_" + type + "_d" + std::to_string(dim) + "_h" + std::to_string(heads), true});
      }
    }
    kernels.push_back({"vkv_decode_" + type + "_any", true});
    for (const int dim : {64, 128}) {
      if (dtype != Dtype::kFloat32) kernels.push_back({"vkv_prefill_" + type + "_d" + std::to_string(dim)});
    }
    for (const int rows : {16, 32}) kernels.push_back({"vkv_prefill_" + type + "_r" + std::to_string(rows)});
    for (const int rows : {1, 2, 4, 8}) kernels.push_back({"vkv_multiply_" + type + "_r" + std::to_string(rows)});
  }
  return kernels;
}

}  // namespace

std::span<const vkv::cuda::ModuleKernel> PackageKernels() {
  static const std::vector<NamedKernel> names = NameKernels();
  static const std::vector<vkv::cuda::ModuleKernel> kernels = [] {
    std::vector<vkv::cuda::ModuleKernel> all;
    for (const NamedKernel& kernel : names) all.push_back({kernel.name.c_str(), kernel.uses_shared_memory});
    return all;
  }();
  return kernels;
}

Status KernelLauncher::Open(vkv::cuda::DriverCuda& driver, const std::string& module, Stream stream,
                            std::unique_ptr<KernelLauncher>& launcher) {
  const vkv::cuda::Module* const loaded = driver.FindModule(module);
  if (loaded == nullptr) return Fail(Code::kInternal, "KernelLauncher::Open");
  launcher.reset(new KernelLauncher(driver, *loaded, stream));
  return Ok();
}

KernelLauncher::KernelLauncher(vkv::cuda::DriverCuda& driver, const vkv::cuda::Module& module, Stream stream)
    : driver_(driver),
      module_(module),
      stream_(stream),
      architecture_("sm_" + std::to_string(driver.info().compute_capability)),
      submit_([this](const Launch& launch) { return Run(launch); }) {}

Status KernelLauncher::Run(const Launch& launch) {
  const vkv::cuda::CUfunction kernel = module_.Find(launch.name);
  if (kernel == nullptr) return Fail(Code::kInternal, "KernelLauncher::Run");
  const vkv::cuda::LaunchSize size = {
      {launch.grid.x, launch.grid.y, launch.grid.z}, launch.threads, launch.shared_bytes};
  return driver_.LaunchKernel(kernel, size, stream_, launch.parameters);
}

}  // namespace vkv::kernels::cuda
