#include "cuda/answers.h"

namespace vkv::cuda {
namespace {

const char* NameOf(CudaApi& api, CUresult result) {
  if (const char* name = ResultName(result)) return name;
  const char* name = nullptr;  // static in the driver, which is never unloaded
  return api.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr ? name : "";
}

Code CodeOf(CUresult result, const Subject& subject) {
  if (IsSticky(result) || IsGone(result)) return Code::kDriverLost;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return subject.out_of_memory;
  if (IsMisuse(result)) return subject.misuse;
  return Code::kDriverCallFailed;
}

}  // namespace

Status ToStatus(CudaApi& api, const char* call, CUresult result, const Subject& subject) {
  if (result == CUDA_SUCCESS) return Ok();
  return {CodeOf(result, subject), call, result, NameOf(api, result), subject.what, subject.how_many};
}

}  // namespace vkv::cuda
