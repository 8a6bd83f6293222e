// What this machine allows a process: its memory and its number of kernel mappings. Reads /proc and the
// cgroup files when asked; keeps nothing. Threads: any.
#ifndef VKV_HOST_MACHINE_H_
#define VKV_HOST_MACHINE_H_

#include <cstdint>
#include <string>

namespace vkv::host {

// The machine's memory or, when smaller, the least limit of the memory cgroups (v1 or v2) this process is in.
// `root` stands in front of every path read, for tests.
uint64_t MachineMemoryBytes(const std::string& root = "");

// vm.max_map_count, or the kernel's own default where it cannot be read.
uint64_t KernelMappingLimit();

}  // namespace vkv::host

#endif  // VKV_HOST_MACHINE_H_
