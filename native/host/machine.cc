#include "host/machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

namespace vkv::host {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;
constexpr uint64_t kDefaultMappingLimit = 65'530;

// The number a file starts with; kNoLimit when there is no such file or it says "max".
uint64_t ReadNumber(const std::string& path) {
  std::string text;
  std::ifstream file(path);
  std::getline(file, text);
  uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() ? number : kNoLimit;
}

// The least limit from the cgroup at `path` up to the top of its tree. In a container the path may name a
// directory that only the machine outside sees; the walk then still finds the container's own at the top.
uint64_t LeastLimit(const std::string& tree, std::string path, const char* file) {
  uint64_t limit = kNoLimit;
  for (;;) {
    limit = std::min(limit, ReadNumber(tree + path + "/" + file));
    if (path.empty() || path == "/") return limit;
    path.resize(path.rfind('/'));
  }
}

// A line is "hierarchy:controllers:path"; the controllers of cgroup v2 are empty.
bool SplitLine(std::string_view line, std::string_view& controllers, std::string_view& path) {
  const size_t first = line.find(':');
  const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
  if (second == line.npos) return false;
  controllers = line.substr(first + 1, second - first - 1);
  path = line.substr(second + 1);
  return path.starts_with('/');
}

// Whether "memory" is one of the names between the commas.
bool HasMemory(std::string_view controllers) {
  for (;;) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "memory") return true;
    if (comma == controllers.npos) return false;
    controllers.remove_prefix(comma + 1);
  }
}

}  // namespace

uint64_t MachineMemoryBytes(const std::string& root) {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const std::string top = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::string_view controllers;
    std::string_view path;
    if (!SplitLine(line, controllers, path)) continue;
    if (controllers.empty()) {
      bytes = std::min(bytes, LeastLimit(top, std::string(path), "memory.max"));
    } else if (HasMemory(controllers)) {
      bytes = std::min(bytes, LeastLimit(top + "/memory", std::string(path), "memory.limit_in_bytes"));
    }
  }
  return bytes;
}

uint64_t KernelMappingLimit() {
  const uint64_t limit = ReadNumber("/proc/sys/vm/max_map_count");
  return limit == kNoLimit ? kDefaultMappingLimit : limit;
}

}  // namespace vkv::host
