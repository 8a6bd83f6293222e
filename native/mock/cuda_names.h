// CUDA's names, usable without a prefix in the simulated device, as CUDA's own code would. Declarations only.
#ifndef VKV_MOCK_CUDA_NAMES_H_
#define VKV_MOCK_CUDA_NAMES_H_

#include "cuda/types.h"

namespace vkv::mock {

using cuda::CUcontext;
using cuda::CUdevice;
using cuda::CUdevice_attribute;
using cuda::CUdeviceptr;
using cuda::CUevent;
using cuda::CUfunction;
using cuda::CUfunction_attribute;
using cuda::CUgraph;
using cuda::CUgraphExec;
using cuda::CUjit_option;
using cuda::CUmemAccess_flags;
using cuda::CUmemAccessDesc;
using cuda::CUmemAllocationGranularity_flags;
using cuda::CUmemAllocationProp;
using cuda::CUmemGenericAllocationHandle;
using cuda::CUmemLocation;
using cuda::CUmodule;
using cuda::CUresult;
using cuda::CUstream;
using cuda::CUstreamCaptureMode;

using enum cuda::CUresult;
using enum cuda::CUdevice_attribute;
using enum cuda::CUfunction_attribute;
using enum cuda::CUjit_option;
using enum cuda::CUmemAccess_flags;
using enum cuda::CUmemAllocationHandleType;
using enum cuda::CUmemAllocationType;
using enum cuda::CUmemLocationType;
using enum cuda::CUstream_flags;
using enum cuda::CUstreamCaptureMode;

}  // namespace vkv::mock

#endif  // VKV_MOCK_CUDA_NAMES_H_
