// ModuleImage: reads an image of kernels as far as the simulated device needs it: PTX's version, target and entries, a
// fatbin's header and size; and whether a driver and a GPU of some version would accept it. Does not read code. Pure.
#ifndef VKV_MOCK_MODULE_IMAGE_H_
#define VKV_MOCK_MODULE_IMAGE_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "mock/cuda_names.h"

namespace vkv::mock {

struct ModuleImage {
  // Of PTX; a fatbin's are not read.
  std::set<std::string, std::less<>> entries;
  bool is_ptx = false;

  bool Has(std::string_view kernel) const { return !is_ptx || entries.contains(kernel); }
};

// CUDA_SUCCESS, or the result that a driver would return, with its compiler's message in `log`. PTX is a text that ends
// with a zero.
CUresult ReadImage(const void* image, int32_t driver_version, int32_t compute_capability, ModuleImage& read,
                   std::string& log);

}  // namespace vkv::mock

#endif  // VKV_MOCK_MODULE_IMAGE_H_
