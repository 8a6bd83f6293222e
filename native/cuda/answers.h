// Answers: turns what an entry point answered into a Status.
//
// What an answer means depends on the call: no memory for a page is not the same as no room for a
// reservation. A Subject says so, together with the two numbers of the Status. Any thread; no state.
#ifndef VKV_CUDA_ANSWERS_H_
#define VKV_CUDA_ANSWERS_H_

#include <cstdint>

#include "cuda/cuda_api.h"
#include "status.h"

namespace vkv::cuda {

// What a call was about, and what a refusal of it means.
struct Subject {
  int64_t what = 0;
  int64_t how_many = 0;
  Code out_of_memory = Code::kDriverCallFailed;
  Code misuse = Code::kDriverMisuse;
};

// `call` is a static string. A sticky answer, or that of a context that is gone, gives kDriverLost.
Status ToStatus(CudaApi& api, const char* call, CUresult result, const Subject& subject = {});

}  // namespace vkv::cuda

#endif  // VKV_CUDA_ANSWERS_H_
