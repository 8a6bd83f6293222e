#include "cuda/device.h"

#include "cuda/answers.h"

namespace vkv::cuda {
namespace {

// Calls an entry point of `api` and returns from the enclosing function when it refused.
#define VKV_CALL(name, ...) VKV_RETURN_IF_ERROR(ToStatus(api, #name, api.name(__VA_ARGS__)))

constexpr int kNameBytes = 256;

Status NotAvailable(CudaApi& api, Unavailable reason, int ordinal, const char* call, CUresult result) {
  Status status = ToStatus(api, call, result);
  status.code = Code::kDriverUnavailable;
  status.call = call;
  status.what = static_cast<int64_t>(reason);
  status.how_many = ordinal;
  return status;
}

Unavailable ReasonOf(CUresult init_result) {
  if (init_result == CUDA_ERROR_STUB_LIBRARY) return Unavailable::kStubLibrary;
  if (init_result == CUDA_ERROR_NO_DEVICE) return Unavailable::kNoDevice;
  return Unavailable::kInitFailed;
}

Status QueryAttribute(CudaApi& api, CUdevice device, CUdevice_attribute attribute, int& value) {
  VKV_CALL(cuDeviceGetAttribute, &value, attribute, device);
  return Ok();
}

}  // namespace

Status FindDevice(CudaApi& api, int ordinal, CUdevice& device, DriverInfo& info) {
  if (const CUresult result = api.cuInit(/*flags=*/0); result != CUDA_SUCCESS) {
    return NotAvailable(api, ReasonOf(result), ordinal, "cuInit", result);
  }
  int devices = 0;
  VKV_CALL(cuDeviceGetCount, &devices);
  if (devices == 0) {
    return NotAvailable(api, Unavailable::kNoDevice, ordinal, "cuDeviceGetCount", CUDA_SUCCESS);
  }
  if (ordinal < 0 || ordinal >= devices) {
    return NotAvailable(api, Unavailable::kNoSuchDevice, ordinal, "cuDeviceGetCount", CUDA_SUCCESS);
  }
  VKV_CALL(cuDeviceGet, &device, ordinal);

  // A driver that does not know the attribute returns an error: it has no virtual memory management
  // either.
  int has_virtual_memory = 0;
  const Status attribute =
      QueryAttribute(api, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, has_virtual_memory);
  if (attribute.code == Code::kDriverLost) return attribute;
  if (!attribute.ok() || has_virtual_memory == 0) {
    Status unsupported = Fail(Code::kDriverUnsupported, "cuDeviceGetAttribute", ordinal);
    unsupported.result = attribute.result;
    unsupported.result_name = attribute.result_name;
    return unsupported;
  }

  char name[kNameBytes] = {};
  VKV_CALL(cuDeviceGetName, name, kNameBytes - 1, device);
  int major = 0;
  int minor = 0;
  VKV_RETURN_IF_ERROR(QueryAttribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major));
  VKV_RETURN_IF_ERROR(QueryAttribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor));
  VKV_CALL(cuDriverGetVersion, &info.driver_version);
  info.device_name = name;
  info.device = ordinal;
  info.compute_capability = major * 10 + minor;
  info.has_streams = true;
  info.has_host_access = api.traits().has_host_access;
  info.has_memory = api.traits().has_memory;
  return Ok();
}

Status FindPageSizes(CudaApi& api, DriverInfo& info) {
  const CUmemAllocationProp properties = PageProperties(info.device);
  size_t minimum_bytes = 0;
  size_t recommended_bytes = 0;
  VKV_CALL(cuMemGetAllocationGranularity, &minimum_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  VKV_CALL(cuMemGetAllocationGranularity, &recommended_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  info.granularity_bytes = minimum_bytes;
  info.default_page_bytes = recommended_bytes;
  return Ok();
}

CUmemAllocationProp PageProperties(int ordinal) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
  return properties;
}

#undef VKV_CALL

}  // namespace vkv::cuda
