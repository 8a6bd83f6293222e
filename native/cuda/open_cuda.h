// OpenCudaDriver: builds a CUDA driver: the loader's table under a DriverCuda.
#ifndef VKV_CUDA_OPEN_CUDA_H_
#define VKV_CUDA_OPEN_CUDA_H_

#include <memory>

#include "driver.h"

namespace vkv {

// Opens the device with this ordinal, with the installed driver's library or, when `library_path` is not
// nullptr, with that one. Any thread. Every open loads a table of its own; the driver library underneath is
// one for the process.
Status OpenCudaDriver(int device, const char* library_path, std::unique_ptr<Driver>& driver);

}  // namespace vkv

#endif  // VKV_CUDA_OPEN_CUDA_H_
