// LoadedCuda: the table of CUDA entry points filled from the installed driver's library, without a toolkit.
//
// Load finds libcuda.so.1 with dlopen and every entry point with cuGetProcAddress (12.0, then 11.3) or dlsym.
// Of the driver it calls only cuGetProcAddress and, for an error's text, cuDriverGetVersion; DriverCuda calls
// cuInit. The library is never closed, because the driver does not survive being unloaded
// after use. Threads: Load from any; the table is immutable afterwards. Every Load fills a table of its own; the driver
// library underneath is one for the process.
#ifndef VKV_CUDA_LOADER_H_
#define VKV_CUDA_LOADER_H_

#include <memory>

#include "cuda/cuda_api.h"
#include "status.h"

namespace vkv::cuda {

class LoadedCuda final : public CudaApi {
 public:
  // `library_path`: the library to open, or nullptr for the places where it is usually found. Fails with
  // kDriverUnavailable (kNoLibrary) when there is none, and with kDriverTooOld (call: the entry point that is
  // missing, what: the driver's version or 0) when it is not complete.
  static Status Load(const char* library_path, std::shared_ptr<CudaApi>& api);

#define VKV_DECLARE(name, version, symbol, need, parameters, arguments) CUresult name parameters override;
  VKV_CUDA_ENTRY_POINTS(VKV_DECLARE)
#undef VKV_DECLARE

 private:
  LoadedCuda() = default;
  Status Resolve(void* library);

#define VKV_POINTER(name, version, symbol, need, parameters, arguments) CUresult(*name##_) parameters = nullptr;
  VKV_CUDA_ENTRY_POINTS(VKV_POINTER)
#undef VKV_POINTER
};

}  // namespace vkv::cuda

#endif  // VKV_CUDA_LOADER_H_
