// What this machine allows a process: memory and kernel mappings. Reads /proc and the
// cgroup files when asked; keeps nothing. Threads: any.
#ifndef VKV_HOST_MACHINE_H_
#define VKV_HOST_MACHINE_H_

#include <cstdint>
#include <string>

namespace vkv::host {

struct MemoryRoom {
  uint64_t limit_bytes = 0;      // for this process and those in its cgroup together
  uint64_t available_bytes = 0;  // that can be taken now without swapping; cached files count as free
};

// Of the machine and of every memory cgroup (v1 or v2) from this process's up to the top, the least each: the
// tightest limit and the least room may be of different ones. `root` is a prefix of every path read, for tests.
MemoryRoom FindMemoryRoom(const std::string& root = "");

// What stays for everything else, of memory with this limit: an eighth, but at least 128 MiB (or half, where
// the limit is that small) and at most 2 GiB.
uint64_t HeadroomBytes(uint64_t limit_bytes);

// vm.max_map_count, or the kernel's own default where it cannot be read.
uint64_t KernelMappingLimit();

}  // namespace vkv::host

#endif  // VKV_HOST_MACHINE_H_
