// ModuleStore: the modules loaded on the simulated device, the kernels that their images name, and the functions looked
// up in them. Handles are never used again. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_MODULE_STORE_H_
#define VKV_MOCK_MODULE_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "mock/module_image.h"
#include "mock/simulated_kernel.h"

namespace vkv::mock {

class ModuleStore {
 public:
  uint64_t Load(ModuleImage image) {
    modules_[++last_handle_].image = std::move(image);
    return last_handle_;
  }
  bool Unload(uint64_t module) { return modules_.erase(module) != 0; }
  bool IsLive(uint64_t module) const { return modules_.contains(module); }
  // Of a live module.
  bool HasKernel(uint64_t module, const char* name) const { return modules_.at(module).image.Has(name); }

  // Looking up a kernel twice makes two functions, which CUDA allows.
  uint64_t AddFunction(uint64_t module, std::shared_ptr<const SimulatedKernel> kernel) {
    modules_.at(module).functions[++last_handle_] = std::move(kernel);
    return last_handle_;
  }
  // Null when no live module has it.
  std::shared_ptr<const SimulatedKernel> Find(uint64_t function) const {
    for (const auto& [handle, module] : modules_) {
      const auto found = module.functions.find(function);
      if (found != module.functions.end()) return found->second;
    }
    return nullptr;
  }

  uint64_t modules() const { return modules_.size(); }

 private:
  struct Module {
    ModuleImage image;
    std::map<uint64_t, std::shared_ptr<const SimulatedKernel>> functions;
  };

  std::map<uint64_t, Module> modules_;
  uint64_t last_handle_ = uint64_t{0x6b} << 32;
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_MODULE_STORE_H_
