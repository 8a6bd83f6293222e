// ModuleImage: what the simulated device reads of an image of kernels, and whether a driver and a GPU of some age would
// take it: PTX by its version, target and entries, a fatbin by its header and its size. Code is not looked at. Pure.
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

// CUDA_SUCCESS, or what the driver would answer, with what its compiler would say in `log`. Of PTX `image` is a text
// that ends with a zero.
CUresult ReadImage(const void* image, int32_t driver_version, int32_t compute_capability, ModuleImage& read,
                   std::string& log);

}  // namespace vkv::mock

#endif  // VKV_MOCK_MODULE_IMAGE_H_
