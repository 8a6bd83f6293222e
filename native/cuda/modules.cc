#include "cuda/modules.h"

#include <utility>

namespace vkv::cuda {

const Module* Modules::Find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = modules_.find(name);
  return found == modules_.end() ? nullptr : found->second.get();
}

bool Modules::Claim(const std::string& name) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto [entry, is_new] = modules_.try_emplace(name);
    if (is_new) return true;
    if (entry->second != nullptr) return false;
    finished_.wait(lock);
  }
}

void Modules::Finish(const std::string& name, std::unique_ptr<const Module> module) {
  {
    const std::lock_guard lock(mutex_);
    if (module == nullptr)
      modules_.erase(name);
    else
      modules_[name] = std::move(module);
  }
  finished_.notify_all();
}

std::vector<CUmodule> Modules::Take() {
  const std::lock_guard lock(mutex_);
  std::vector<CUmodule> handles;
  for (const auto& [name, module] : modules_) {
    if (module != nullptr) handles.push_back(module->handle);
  }
  modules_.clear();
  return handles;
}

}  // namespace vkv::cuda
