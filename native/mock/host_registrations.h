// HostRegistrations: the ranges of the CPU's memory that are registered with the simulated device. Plain book-keeping.
// Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_HOST_REGISTRATIONS_H_
#define VKV_MOCK_HOST_REGISTRATIONS_H_

#include <cstdint>
#include <iterator>
#include <map>

namespace vkv::mock {

class HostRegistrations {
 public:
  enum class Cover { kNone, kPart, kWhole };

  // How much of the range lies in registered memory; kPart also where it lies in several registered ranges.
  Cover CoverOf(uint64_t address, uint64_t bytes) const {
    const auto behind = ranges_.lower_bound(address + bytes);
    if (behind == ranges_.begin()) return Cover::kNone;
    const auto& [start, length] = *std::prev(behind);
    if (start + length <= address) return Cover::kNone;
    return start <= address && address + bytes <= start + length ? Cover::kWhole : Cover::kPart;
  }
  void Add(uint64_t address, uint64_t bytes) { ranges_[address] = bytes; }
  // Bytes of the range that starts there; 0: none does.
  uint64_t BytesAt(uint64_t address) const {
    const auto found = ranges_.find(address);
    return found == ranges_.end() ? 0 : found->second;
  }
  void Remove(uint64_t address) { ranges_.erase(address); }
  uint64_t count() const { return ranges_.size(); }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // address -> bytes
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_HOST_REGISTRATIONS_H_
