// The one list of the CUDA driver's entry points in use. CudaApi (one virtual method each), the loader's table, the
// mock's call kinds, the fake library of the loader's tests and the check against cuda.h are generated from it.
#ifndef VKV_CUDA_ENTRY_POINTS_H_
#define VKV_CUDA_ENTRY_POINTS_H_

// Each line is X(name, version, symbol, need, parameters, arguments).
//
// version: the CUDA version that introduced this prototype. cuGetProcAddress is called with it,
// never with the driver's version, because a later version may change the signature of a name
// (cuCtxSynchronize at 13.0). symbol: the name for dlsym where there is no cuGetProcAddress. need: a
// missing kRequired entry point fails the load; a missing kOptional one returns CUDA_ERROR_NOT_FOUND when
// called.
//
// clang-format off
#define VKV_CUDA_ENTRY_POINTS(X) \
  /* the driver and its devices */ \
  X(cuInit, 2000, cuInit, kRequired, (unsigned flags), (flags)) \
  X(cuDriverGetVersion, 2020, cuDriverGetVersion, kRequired, (int* version), (version)) \
  X(cuGetErrorName, 6000, cuGetErrorName, kOptional, (CUresult error, const char** name), (error, name)) \
  X(cuDeviceGetCount, 2000, cuDeviceGetCount, kRequired, (int* count), (count)) \
  X(cuDeviceGet, 2000, cuDeviceGet, kRequired, (CUdevice* device, int ordinal), (device, ordinal)) \
  X(cuDeviceGetName, 2000, cuDeviceGetName, kRequired, \
    (char* name, int name_bytes, CUdevice device), (name, name_bytes, device)) \
  X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute, kRequired, \
    (int* value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device)) \
  X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, kRequired, (size_t* bytes, CUdevice device), (bytes, device)) \
  /* contexts */ \
  X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, kRequired, \
    (CUcontext* context, CUdevice device), (context, device)) \
  X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, kOptional, (CUdevice device), (device)) \
  X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2, kRequired, (CUcontext context), (context)) \
  X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2, kRequired, (CUcontext* context), (context)) \
  X(cuCtxGetCurrent, 4000, cuCtxGetCurrent, kRequired, (CUcontext* context), (context)) \
  X(cuCtxSynchronize, 2000, cuCtxSynchronize, kRequired, (), ()) \
  X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode, kOptional, \
    (CUstreamCaptureMode* mode), (mode)) \
  /* addresses and physical memory */ \
  X(cuMemGetInfo, 3020, cuMemGetInfo_v2, kRequired, (size_t* free_bytes, size_t* total_bytes), \
    (free_bytes, total_bytes)) \
  X(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity, kRequired, \
    (size_t* granularity_bytes, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags option), \
    (granularity_bytes, prop, option)) \
  X(cuMemAddressReserve, 10020, cuMemAddressReserve, kRequired, \
    (CUdeviceptr* address, size_t bytes, size_t alignment_bytes, CUdeviceptr hint, unsigned long long flags), \
    (address, bytes, alignment_bytes, hint, flags)) \
  X(cuMemAddressFree, 10020, cuMemAddressFree, kRequired, (CUdeviceptr address, size_t bytes), (address, bytes)) \
  X(cuMemCreate, 10020, cuMemCreate, kRequired, \
    (CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop, unsigned long long flags), \
    (handle, bytes, prop, flags)) \
  X(cuMemRelease, 10020, cuMemRelease, kRequired, (CUmemGenericAllocationHandle handle), (handle)) \
  X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle, kOptional, \
    (CUmemGenericAllocationHandle* handle, void* address), (handle, address)) \
  X(cuMemMap, 10020, cuMemMap, kRequired, \
    (CUdeviceptr address, size_t bytes, size_t offset_bytes, CUmemGenericAllocationHandle handle, \
     unsigned long long flags), \
    (address, bytes, offset_bytes, handle, flags)) \
  X(cuMemUnmap, 10020, cuMemUnmap, kRequired, (CUdeviceptr address, size_t bytes), (address, bytes)) \
  X(cuMemSetAccess, 10020, cuMemSetAccess, kRequired, \
    (CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descs, size_t descs_count), \
    (address, bytes, descs, descs_count)) \
  X(cuMemGetAccess, 10020, cuMemGetAccess, kOptional, \
    (unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address), (flags, location, address)) \
  /* bytes */ \
  X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, kRequired, (CUdeviceptr to, const void* from, size_t bytes), \
    (to, from, bytes)) \
  X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2, kRequired, \
    (CUdeviceptr to, const void* from, size_t bytes, CUstream stream), (to, from, bytes, stream)) \
  X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, kRequired, (void* to, CUdeviceptr from, size_t bytes), (to, from, bytes)) \
  X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, kRequired, \
    (void* to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream)) \
  X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, kRequired, \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream)) \
  X(cuMemsetD8Async, 3020, cuMemsetD8Async, kRequired, \
    (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream), (to, value, bytes, stream)) \
  /* the CPU's memory */ \
  X(cuMemHostRegister, 6050, cuMemHostRegister_v2, kOptional, (void* start, size_t bytes, unsigned flags), \
    (start, bytes, flags)) \
  X(cuMemHostUnregister, 4000, cuMemHostUnregister, kOptional, (void* start), (start)) \
  X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2, kOptional, \
    (CUdeviceptr* address, void* start, unsigned flags), (address, start, flags)) \
  /* streams and events */ \
  X(cuStreamCreate, 2000, cuStreamCreate, kRequired, (CUstream* stream, unsigned flags), (stream, flags)) \
  X(cuStreamDestroy, 4000, cuStreamDestroy_v2, kRequired, (CUstream stream), (stream)) \
  X(cuStreamSynchronize, 2000, cuStreamSynchronize, kRequired, (CUstream stream), (stream)) \
  X(cuStreamQuery, 2000, cuStreamQuery, kRequired, (CUstream stream), (stream)) \
  X(cuStreamWaitEvent, 3020, cuStreamWaitEvent, kRequired, (CUstream stream, CUevent event, unsigned flags), \
    (stream, event, flags)) \
  X(cuEventCreate, 2000, cuEventCreate, kRequired, (CUevent* event, unsigned flags), (event, flags)) \
  X(cuEventRecord, 2000, cuEventRecord, kRequired, (CUevent event, CUstream stream), (event, stream)) \
  X(cuEventQuery, 2000, cuEventQuery, kRequired, (CUevent event), (event)) \
  X(cuEventSynchronize, 2000, cuEventSynchronize, kRequired, (CUevent event), (event)) \
  X(cuEventDestroy, 4000, cuEventDestroy_v2, kRequired, (CUevent event), (event)) \
  /* graphs */ \
  X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, kOptional, (CUstream stream, CUstreamCaptureMode mode), \
    (stream, mode)) \
  X(cuStreamEndCapture, 10000, cuStreamEndCapture, kOptional, (CUstream stream, CUgraph* graph), (stream, graph)) \
  X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags, kOptional, \
    (CUgraphExec* exec, CUgraph graph, unsigned long long flags), (exec, graph, flags)) \
  X(cuGraphLaunch, 10000, cuGraphLaunch, kOptional, (CUgraphExec exec, CUstream stream), (exec, stream)) \
  X(cuGraphExecDestroy, 10000, cuGraphExecDestroy, kOptional, (CUgraphExec exec), (exec)) \
  X(cuGraphDestroy, 10000, cuGraphDestroy, kOptional, (CUgraph graph), (graph)) \
  /* kernels */ \
  X(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx, kOptional, \
    (CUmodule* module, const void* image, unsigned options_count, CUjit_option* options, void** values), \
    (module, image, options_count, options, values)) \
  X(cuModuleUnload, 2000, cuModuleUnload, kOptional, (CUmodule module), (module)) \
  X(cuModuleGetFunction, 2000, cuModuleGetFunction, kOptional, \
    (CUfunction* function, CUmodule module, const char* name), (function, module, name)) \
  X(cuFuncSetAttribute, 9000, cuFuncSetAttribute, kOptional, \
    (CUfunction function, CUfunction_attribute attribute, int value), (function, attribute, value)) \
  X(cuLaunchKernel, 4000, cuLaunchKernel, kOptional, \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra), \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra))
// clang-format on

namespace vkv::cuda {

enum class Need { kRequired, kOptional };

}  // namespace vkv::cuda

#endif  // VKV_CUDA_ENTRY_POINTS_H_
