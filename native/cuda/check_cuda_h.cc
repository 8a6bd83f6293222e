// Compares the declarations here with the real cuda.h, at compile time, where CUDA 13 has one; elsewhere
// it compiles to nothing, so that no version of the toolkit can break an installation.
//
// Checked: the size and every offset of each struct, the value of each enumerator, and for each entry point
// that the prototype of the version we ask for (PFN_<name>_v<version> of cudaTypedefs.h) takes what we pass:
// as many parameters, each of the same kind, size and constness.
#if __has_include(<cuda.h>) && __has_include(<cudaTypedefs.h>)
#include <cuda.h>
#include <cudaTypedefs.h>
#endif

#if defined(CUDA_VERSION) && CUDA_VERSION / 1000 == 13

#include <type_traits>

#include "cuda/entry_points.h"
#include "cuda/types.h"

namespace vkv::cuda {
namespace {

// Two types that a call passes in the same way. Pointers are followed, so `size_t*` is not `int*`.
template <typename Ours, typename Theirs>
constexpr bool IsSame() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_const_v<OurTarget> != std::is_const_v<TheirTarget>) {
      return false;
    } else if constexpr (std::is_void_v<OurTarget> || std::is_void_v<TheirTarget>) {
      return std::is_void_v<OurTarget> && std::is_void_v<TheirTarget>;
    } else if constexpr (
        requires { sizeof(OurTarget); } && requires { sizeof(TheirTarget); }) {
      return IsSame<OurTarget, TheirTarget>();
    } else {  // opaque handles
      return !(requires { sizeof(OurTarget); }) && !(requires { sizeof(TheirTarget); });
    }
  } else {
    constexpr bool are_scalars = std::is_scalar_v<Ours> && std::is_scalar_v<Theirs>;
    constexpr bool are_classes = std::is_class_v<Ours> && std::is_class_v<Theirs>;
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) && (are_scalars || are_classes) &&
           std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct IsSamePrototype : std::false_type {};

template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct IsSamePrototype<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<IsSame<OurResult, TheirResult>() && (IsSame<Ours, Theirs>() && ...)> {
};

#define VKV_CHECK(name, version, symbol, need, parameters, arguments)                      \
  static_assert(IsSamePrototype<CUresult(*) parameters, ::PFN_##name##_v##version>::value, \
                #name " does not have the prototype of CUDA " #version);
VKV_CUDA_ENTRY_POINTS(VKV_CHECK)
#undef VKV_CHECK

#define VKV_CHECK_VALUE(name) static_assert(static_cast<int>(name) == static_cast<int>(::name), #name)
#define VKV_CHECK_RESULT(name, value) VKV_CHECK_VALUE(name);
VKV_CUDA_RESULTS(VKV_CHECK_RESULT)
#undef VKV_CHECK_RESULT
VKV_CHECK_VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
VKV_CHECK_VALUE(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
VKV_CHECK_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
VKV_CHECK_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
VKV_CHECK_VALUE(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
VKV_CHECK_VALUE(CU_MEM_ALLOCATION_TYPE_PINNED);
VKV_CHECK_VALUE(CU_MEM_HANDLE_TYPE_NONE);
VKV_CHECK_VALUE(CU_MEM_LOCATION_TYPE_DEVICE);
VKV_CHECK_VALUE(CU_MEM_ACCESS_FLAGS_PROT_NONE);
VKV_CHECK_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READ);
VKV_CHECK_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
VKV_CHECK_VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
VKV_CHECK_VALUE(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
VKV_CHECK_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL);
VKV_CHECK_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
VKV_CHECK_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED);
VKV_CHECK_VALUE(CU_GET_PROC_ADDRESS_SUCCESS);
VKV_CHECK_VALUE(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
VKV_CHECK_VALUE(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
VKV_CHECK_VALUE(CU_JIT_INFO_LOG_BUFFER);
VKV_CHECK_VALUE(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
VKV_CHECK_VALUE(CU_JIT_ERROR_LOG_BUFFER);
VKV_CHECK_VALUE(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
VKV_CHECK_VALUE(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
static_assert(kHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
VKV_CHECK_VALUE(CU_STREAM_DEFAULT);
VKV_CHECK_VALUE(CU_STREAM_NON_BLOCKING);
VKV_CHECK_VALUE(CU_EVENT_DEFAULT);
VKV_CHECK_VALUE(CU_EVENT_DISABLE_TIMING);
#undef VKV_CHECK_VALUE

#define VKV_CHECK_FIELD(type, field) static_assert(offsetof(type, field) == offsetof(::type, field), #type "." #field)
static_assert(IsSame<CUdevice, ::CUdevice>() && IsSame<CUdeviceptr, ::CUdeviceptr>());
static_assert(IsSame<CUmemGenericAllocationHandle, ::CUmemGenericAllocationHandle>());
static_assert(IsSame<CUmemLocation, ::CUmemLocation>() && IsSame<CUmemAllocationProp, ::CUmemAllocationProp>());
static_assert(IsSame<CUmemAccessDesc, ::CUmemAccessDesc>());
VKV_CHECK_FIELD(CUmemLocation, type);
VKV_CHECK_FIELD(CUmemLocation, id);
VKV_CHECK_FIELD(CUmemAllocationProp, type);
VKV_CHECK_FIELD(CUmemAllocationProp, requestedHandleTypes);
VKV_CHECK_FIELD(CUmemAllocationProp, location);
VKV_CHECK_FIELD(CUmemAllocationProp, win32HandleMetaData);
VKV_CHECK_FIELD(CUmemAllocationProp, allocFlags.compressionType);
VKV_CHECK_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
VKV_CHECK_FIELD(CUmemAllocationProp, allocFlags.usage);
VKV_CHECK_FIELD(CUmemAllocationProp, allocFlags.reserved);
VKV_CHECK_FIELD(CUmemAccessDesc, location);
VKV_CHECK_FIELD(CUmemAccessDesc, flags);
#undef VKV_CHECK_FIELD

}  // namespace
}  // namespace vkv::cuda

#endif
