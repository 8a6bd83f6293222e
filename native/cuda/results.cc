#include "cuda/results.h"

namespace vkv::cuda {

const char* ResultName(CUresult result) {
  switch (result) {
#define VKV_NAME(name, value) \
  case name: return #name;
    VKV_CUDA_RESULTS(VKV_NAME)
#undef VKV_NAME
  }
  return nullptr;
}

bool IsSticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    // The documentation does not call these four fatal, but memory cannot be trusted after them.
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ASSERT: return true;
    default: return false;
  }
}

bool IsGone(CUresult result) {
  return result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
         result == CUDA_ERROR_INVALID_CONTEXT;
}

bool IsMisuse(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
         result == CUDA_ERROR_ALREADY_MAPPED || result == CUDA_ERROR_NOT_MAPPED;
}

}  // namespace vkv::cuda
