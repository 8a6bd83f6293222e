// MockDevice's entry points for kernels. It runs simulated kernels on the CPU, in the order of their stream. A device
// without simulated kernels returns that kernels are not supported; tests use QueueWork in their place.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "mock/mock_call.h"

namespace vkv::mock {
namespace {

constexpr uint32_t kMostGridX = 0x7fffffff;
constexpr uint32_t kMostGridYz = 65'535;
constexpr uint32_t kMostThreads = 1024;
constexpr uint32_t kMostSharedBytes = 48 << 10;  // without asking for more

// Writes `text` to a log's buffer, as far as it fits, and returns the written size in place of the buffer's.
void WriteLog(const std::string& log, unsigned count, const CUjit_option* options, void** values) {
  char* buffer = nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char*>(values[i]);
    if (options[i] != CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES || buffer == nullptr) continue;
    const size_t bytes = std::min(log.size(), reinterpret_cast<size_t>(values[i]));
    std::memcpy(buffer, log.data(), bytes);
    values[i] = reinterpret_cast<void*>(bytes);
  }
}

bool IsPossible(const LaunchArguments& launch) {
  const auto [x, y, z] = launch.grid;
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  return x >= 1 && x <= kMostGridX && y >= 1 && y <= kMostGridYz && z >= 1 && z <= kMostGridYz && threads >= 1 &&
         threads <= kMostThreads && launch.shared_bytes <= kMostSharedBytes;
}

}  // namespace

CUresult MockDevice::cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned options_count,
                                        CUjit_option* options, void** values) {
  Call call(*this, CallKind::cuModuleLoadDataEx);
  if (call.is_refused()) return call.result();
  if (module == nullptr) return call.Break(rules::kOutput);
  if (options_.find_kernel == nullptr) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  if (image == nullptr) return call.Break(rules::kImage, CUDA_ERROR_INVALID_IMAGE);
  ModuleImage read;
  std::string log;
  const CUresult result = ReadImage(image, options_.driver_version, options_.compute_capability, read, log);
  WriteLog(log, options_count, options, values);
  if (result == CUDA_ERROR_INVALID_IMAGE) return call.Break(rules::kImage, result);
  if (result != CUDA_SUCCESS) return call.Answer(result);
  if (!pages_.Occupy(options_.module_bytes)) return call.Answer(CUDA_ERROR_OUT_OF_MEMORY);
  call.arguments().handle = modules_.Load(std::move(read));
  *module = reinterpret_cast<CUmodule>(call.arguments().handle);
  return call.result();
}

CUresult MockDevice::cuModuleUnload(CUmodule module) {
  Call call(*this, CallKind::cuModuleUnload, {.handle = reinterpret_cast<uint64_t>(module)});
  if (call.is_refused()) return call.result();
  if (options_.find_kernel == nullptr) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  if (!modules_.Unload(reinterpret_cast<uint64_t>(module))) {
    return call.Break(rules::kLiveModule, CUDA_ERROR_INVALID_HANDLE);
  }
  pages_.Vacate(options_.module_bytes);
  return call.result();
}

CUresult MockDevice::cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Call call(*this, CallKind::cuModuleGetFunction, {.handle = reinterpret_cast<uint64_t>(module)});
  if (call.is_refused()) return call.result();
  if (options_.find_kernel == nullptr) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  if (function == nullptr || name == nullptr) return call.Break(rules::kOutput);
  if (!modules_.IsLive(reinterpret_cast<uint64_t>(module))) {
    return call.Break(rules::kLiveModule, CUDA_ERROR_INVALID_HANDLE);
  }
  std::shared_ptr<const SimulatedKernel> kernel = options_.find_kernel(name);
  if (kernel == nullptr || !modules_.HasKernel(reinterpret_cast<uint64_t>(module), name))
    return call.Answer(CUDA_ERROR_NOT_FOUND);
  const uint64_t handle = modules_.AddFunction(reinterpret_cast<uint64_t>(module), std::move(kernel));
  *function = reinterpret_cast<CUfunction>(handle);
  return call.result();
}

CUresult MockDevice::cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  Call call(*this, CallKind::cuFuncSetAttribute, {.handle = reinterpret_cast<uint64_t>(function)});
  if (call.is_refused()) return call.result();
  if (options_.find_kernel == nullptr) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  if (modules_.Find(reinterpret_cast<uint64_t>(function)) == nullptr) {
    return call.Break(rules::kLiveKernel, CUDA_ERROR_INVALID_HANDLE);
  }
  if (attribute != CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT || value < -1 || value > 100) {
    return call.Answer(CUDA_ERROR_INVALID_VALUE);
  }
  return call.result();
}

CUresult MockDevice::cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                    CUstream stream, void** parameters, void** extra) {
  Call call(*this, CallKind::cuLaunchKernel,
            {.handle = reinterpret_cast<uint64_t>(function), .stream = reinterpret_cast<uint64_t>(stream)});
  if (call.is_refused()) return call.result();
  if (options_.find_kernel == nullptr) return call.Answer(CUDA_ERROR_NOT_SUPPORTED);
  const std::shared_ptr<const SimulatedKernel> kernel = modules_.Find(reinterpret_cast<uint64_t>(function));
  if (kernel == nullptr) return call.Break(rules::kLiveKernel, CUDA_ERROR_INVALID_HANDLE);
  if (parameters == nullptr || parameters[0] == nullptr || extra != nullptr) {
    return call.Break(rules::kKernelParameters);
  }
  const LaunchArguments launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, parameters[0]};
  if (!IsPossible(launch) || !kernel->IsLaunchable(launch)) return call.Break(rules::kLaunchSize);
  const auto* bytes = static_cast<const uint8_t*>(parameters[0]);
  const auto on = reinterpret_cast<uint64_t>(stream);
  if (!streams_.IsLiveStream(on)) return call.Break(rules::kLiveStream, CUDA_ERROR_INVALID_HANDLE);
  Work work = {.kind = WorkKind::kKernel, .touches = {}, .step = call.step()};
  work.kernel = kernel;
  work.parameter.assign(bytes, bytes + kernel->parameter_bytes());
  if (!streams_.IsCapturing(on)) work.touches = TouchesOf(work, &on);
  return Queue(call, on, std::move(work));
}

}  // namespace vkv::mock
