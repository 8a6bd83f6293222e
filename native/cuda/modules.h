// Modules: the modules of kernels that a driver has loaded, by name. Of several threads that need a module, one loads
// it.
//
// It stores modules and chooses the thread that loads; it makes no driver call. A module never changes. Threads: any.
#ifndef VKV_CUDA_MODULES_H_
#define VKV_CUDA_MODULES_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/types.h"

namespace vkv::cuda {

// A kernel to look up when a module is loaded.
struct ModuleKernel {
  const char* name = nullptr;
  bool uses_shared_memory = false;  // it is best with as much of it as a multiprocessor has
};

struct Module {
  CUmodule handle = nullptr;
  std::map<std::string, CUfunction, std::less<>> kernels;

  // nullptr when it has none of that name.
  CUfunction Find(std::string_view name) const {
    const auto found = kernels.find(name);
    return found == kernels.end() ? nullptr : found->second;
  }
};

class Modules {
 public:
  // nullptr when it is not there, or not yet.
  const Module* Find(const std::string& name);
  // True: the caller must load it and call Finish. False: it is loaded. Waits while another thread loads it.
  bool Claim(const std::string& name);
  // Ends a claim; null: it could not be loaded.
  void Finish(const std::string& name, std::unique_ptr<const Module> module);
  // Removes and returns all, for the owner to unload.
  std::vector<CUmodule> Take();

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable finished_;
  std::map<std::string, std::unique_ptr<const Module>> modules_;  // null: being loaded
};

}  // namespace vkv::cuda

#endif  // VKV_CUDA_MODULES_H_
