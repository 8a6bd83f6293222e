#include "host/machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace vkv::host {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;
constexpr uint64_t kDefaultMappingLimit = 65'530;

// The bytes of a small file; none when there is no such file. (Streams of the standard library would double the size of
// a released addon.)
std::string ReadFile(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return text;
  char part[4096];
  for (size_t bytes = 0; (bytes = std::fread(part, 1, sizeof(part), file)) > 0;) text.append(part, bytes);
  std::fclose(file);
  return text;
}

// Takes the first line off `text`; false when none is left.
bool TakeLine(std::string_view& text, std::string_view& line) {
  if (text.empty()) return false;
  const size_t end = text.find('\n');
  line = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return true;
}

// The number a text starts with; kNoLimit when it starts with something else ("max").
uint64_t ParseNumber(std::string_view text) {
  uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() ? number : kNoLimit;
}

// The number a file starts with; kNoLimit when there is no such file or it says "max".
uint64_t ReadNumber(const std::string& path) { return ParseNumber(ReadFile(path)); }

// A line is "name number"; false when it is not.
bool SplitEntry(std::string_view line, std::string_view& name, uint64_t& number) {
  const size_t end = line.find(' ');
  if (end == line.npos) return false;
  name = line.substr(0, end);
  number = ParseNumber(line.substr(std::min(line.find_first_not_of(' ', end), line.size())));
  return number != kNoLimit;
}

// The sum of some lines "name number" of a file; 0 without it.
uint64_t SumOfLines(const std::string& path, std::string_view first, std::string_view second) {
  uint64_t sum = 0;
  const std::string text = ReadFile(path);
  std::string_view rest = text, line, name;
  for (uint64_t number = 0; TakeLine(rest, line);)
    if (SplitEntry(line, name, number) && (name == first || name == second)) sum += number;
  return sum;
}

// The file names of a version of cgroups, and the lines of memory.stat that count cached files, which the kernel drops
// before it ends a process for want of memory.
struct GroupFiles {
  const char* limit;
  const char* soft_limit;  // null: none. Above it the kernel throttles a process almost to a halt
  const char* usage;
  std::string_view inactive_files;
  std::string_view active_files;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", nullptr, "memory.usage_in_bytes", "total_inactive_file",
                                  "total_active_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.high", "memory.current", "inactive_file", "active_file"};

// Lowers `room` to what the cgroup at `path` and those above it, up to the top of the tree, leave. In a
// container the path may name a directory that only the machine outside sees; the walk then still finds the
// container's own at the top.
void LowerTo(const std::string& tree, std::string path, const GroupFiles& files, MemoryRoom& room) {
  const uint64_t machine_bytes = room.limit_bytes;
  for (;;) {
    const std::string group = tree + path + "/";
    uint64_t limit = ReadNumber(group + files.limit);
    if (files.soft_limit != nullptr) limit = std::min(limit, ReadNumber(group + files.soft_limit));
    if (limit < machine_bytes) {  // a larger limit has no effect
      room.limit_bytes = std::min(room.limit_bytes, limit);
      const uint64_t usage = ReadNumber(group + files.usage);
      const uint64_t used = usage == kNoLimit ? 0 : usage;
      const uint64_t cached = SumOfLines(group + "memory.stat", files.inactive_files, files.active_files);
      const uint64_t held = used - std::min(cached, used);
      room.available_bytes = std::min(room.available_bytes, limit - std::min(held, limit));
    }
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/'));
  }
}

// Memory available without swapping, as the kernel reports it.
uint64_t AvailableBytes(const std::string& root) {
  const std::string text = ReadFile(root + "/proc/meminfo");
  std::string_view rest = text, line, name;
  for (uint64_t kibibytes = 0; TakeLine(rest, line);)
    if (SplitEntry(line, name, kibibytes) && name == "MemAvailable:") return kibibytes << 10;
  return static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
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

MemoryRoom FindMemoryRoom(const std::string& root) {
  MemoryRoom room;
  room.limit_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  room.available_bytes = std::min(AvailableBytes(root), room.limit_bytes);
  const std::string top = root + "/sys/fs/cgroup";
  const std::string groups = ReadFile(root + "/proc/self/cgroup");
  std::string_view rest = groups, line;
  while (TakeLine(rest, line)) {
    std::string_view controllers;
    std::string_view path;
    if (!SplitLine(line, controllers, path)) continue;
    if (controllers.empty()) LowerTo(top, std::string(path), kVersion2, room);
    if (HasMemory(controllers)) LowerTo(top + "/memory", std::string(path), kVersion1, room);
  }
  return room;
}

uint64_t HeadroomBytes(uint64_t limit_bytes) {
  constexpr uint64_t kLeast = uint64_t{128} << 20;
  constexpr uint64_t kMost = uint64_t{2} << 30;
  return std::min(std::clamp(limit_bytes / 8, kLeast, kMost), limit_bytes / 2);
}

uint64_t KernelMappingLimit() {
  const uint64_t limit = ReadNumber("/proc/sys/vm/max_map_count");
  return limit == kNoLimit ? kDefaultMappingLimit : limit;
}

}  // namespace vkv::host
