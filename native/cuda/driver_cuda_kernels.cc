// DriverCuda's calls for kernels: modules, their functions, launches.
#include <cstdint>
#include <memory>

#include "cuda/driver_cuda.h"

namespace vkv::cuda {
namespace {

constexpr size_t kLogBytes = 8192;  // of the compiler's log of an image

// The compiler's logs, errors first.
std::string TextOf(const char* error, const char* info) {
  std::string text = error;
  if (!text.empty() && text.back() != '\n' && *info != 0) text += '\n';
  return text + info;
}

}  // namespace

Status DriverCuda::LoadModule(const std::string& name, const void* image, std::span<const ModuleKernel> kernels,
                              std::string& log) {
  VKV_RETURN_IF_ERROR(Ready());
  if (!modules_.Claim(name)) return Ok();
  auto module = std::make_unique<Module>();
  const Status status = OpenModule(image, kernels, *module, log);
  if (!status.ok()) module.reset();
  modules_.Finish(name, std::move(module));
  return status;
}

Status DriverCuda::OpenModule(const void* image, std::span<const ModuleKernel> kernels, Module& module,
                              std::string& log) {
  const auto refused = [this](const char* call, CUresult result) {
    Status status = Check(call, result);
    if (!status.ok() && status.code != Code::kDriverLost) status.code = Code::kKernelsRefused;
    return status;
  };
  std::string error(kLogBytes, '\0');
  std::string info(kLogBytes, '\0');
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
                            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  // Sizes are passed in place of pointers; the last byte stays the text's end.
  void* const size = reinterpret_cast<void*>(kLogBytes - 1);
  void* values[] = {error.data(), size, info.data(), size};
  const CUresult result =
      api_->cuModuleLoadDataEx(&module.handle, image, static_cast<unsigned>(std::size(options)), options, values);
  log = TextOf(error.c_str(), info.c_str());
  VKV_RETURN_IF_ERROR(refused("cuModuleLoadDataEx", result));
  for (const auto& [name, uses_shared_memory] : kernels) {
    CUfunction kernel = nullptr;
    const Status found = refused("cuModuleGetFunction", api_->cuModuleGetFunction(&kernel, module.handle, name));
    if (!found.ok()) {
      log = name;
      if (!is_lost()) (void)api_->cuModuleUnload(module.handle);
      return found;
    }
    // A hint, which drivers without it do not need.
    if (uses_shared_memory)
      (void)api_->cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, /*percent=*/100);
    module.kernels.emplace(name, kernel);
  }
  return Ok();
}

Status DriverCuda::LaunchKernel(CUfunction kernel, const LaunchSize& size, Stream stream, const void* parameter) {
  VKV_RETURN_IF_ERROR(Ready());
  void* parameters[] = {const_cast<void*>(parameter)};  // CUDA only copies what it points to
  const CUresult result =
      api_->cuLaunchKernel(kernel, size.grid[0], size.grid[1], size.grid[2], size.block_threads, 1, 1,
                           size.shared_bytes, reinterpret_cast<CUstream>(stream), parameters, /*extra=*/nullptr);
  NoteQueued(stream);
  return Check("cuLaunchKernel", result);
}

Status DriverCuda::CountMultiprocessors(int& count) {
  VKV_RETURN_IF_ERROR(Ready());
  return Check("cuDeviceGetAttribute",
               api_->cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
}

}  // namespace vkv::cuda
