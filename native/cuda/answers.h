// Answers: turns the result of an entry point into a Status.
//
// What a result means depends on the call: no memory for a page differs from no addresses for a reservation. A Subject
// has that meaning and the two numbers of the Status. Any thread; no state.
#ifndef VKV_CUDA_ANSWERS_H_
#define VKV_CUDA_ANSWERS_H_

#include <cstdint>

#include "cuda/cuda_api.h"
#include "status.h"

namespace vkv::cuda {

// What a call works on, and what its refusal means.
struct Subject {
  int64_t what = 0;
  int64_t how_many = 0;
  Code out_of_memory = Code::kDriverCallFailed;
  Code misuse = Code::kDriverMisuse;
};

// `call` is a static string. A sticky result, or that of a destroyed context, gives kDriverLost.
Status ToStatus(CudaApi& api, const char* call, CUresult result, const Subject& subject = {});

}  // namespace vkv::cuda

#endif  // VKV_CUDA_ANSWERS_H_
