// Device: finds a CUDA device by its ordinal and describes it. It keeps nothing open. Any thread.
#ifndef VKV_CUDA_DEVICE_H_
#define VKV_CUDA_DEVICE_H_

#include "cuda/cuda_api.h"
#include "driver.h"

namespace vkv::cuda {

// Initialises CUDA and fills in `device` and all of `info` but the page sizes. Fails with kDriverUnavailable
// (and the reason in `what`), kDriverUnsupported (no virtual memory management), or what a failed call gives.
Status FindDevice(CudaApi& api, int ordinal, CUdevice& device, DriverInfo& info);

// Fills in the page sizes. The device's context is current.
Status FindPageSizes(CudaApi& api, DriverInfo& info);

// The properties of every created page: device memory, not shared with other processes.
CUmemAllocationProp PageProperties(int ordinal);

}  // namespace vkv::cuda

#endif  // VKV_CUDA_DEVICE_H_
