// ModuleStore: the modules loaded on the simulated device, and the kernels asked for in them. Handles are never used
// again. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_MODULE_STORE_H_
#define VKV_MOCK_MODULE_STORE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "mock/simulated_kernel.h"

namespace vkv::mock {

class ModuleStore {
 public:
  uint64_t Load() {
    modules_[++last_handle_];
    return last_handle_;
  }
  bool Unload(uint64_t module) { return modules_.erase(module) != 0; }
  bool IsLive(uint64_t module) const { return modules_.contains(module); }

  // The same kernel asked for twice is two functions, which CUDA allows.
  uint64_t AddFunction(uint64_t module, std::shared_ptr<const SimulatedKernel> kernel) {
    modules_.at(module)[++last_handle_] = std::move(kernel);
    return last_handle_;
  }
  // Null when no live module has it.
  std::shared_ptr<const SimulatedKernel> Find(uint64_t function) const {
    for (const auto& [module, functions] : modules_) {
      const auto found = functions.find(function);
      if (found != functions.end()) return found->second;
    }
    return nullptr;
  }

  uint64_t modules() const { return modules_.size(); }

 private:
  std::map<uint64_t, std::map<uint64_t, std::shared_ptr<const SimulatedKernel>>> modules_;
  uint64_t last_handle_ = uint64_t{0x6b} << 32;
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_MODULE_STORE_H_
