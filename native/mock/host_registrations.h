// HostRegistrations: the ranges of the CPU's memory that are registered with the simulated device, and where its
// kernels see them: at other addresses than the CPU. Plain book-keeping. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_HOST_REGISTRATIONS_H_
#define VKV_MOCK_HOST_REGISTRATIONS_H_

#include <cstdint>
#include <iterator>
#include <map>

namespace vkv::mock {

class HostRegistrations {
 public:
  enum class Cover { kNone, kPart, kWhole };
  struct Range {
    uint64_t bytes = 0;
    bool is_for_device = false;  // its kernels may use it too
    uint64_t on_device = 0;      // where kernels see it; 0: not asked for yet
  };

  // How much of the range lies in registered memory; kPart also where it lies in several registered ranges.
  Cover CoverOf(uint64_t address, uint64_t bytes) const {
    const auto behind = ranges_.lower_bound(address + bytes);
    if (behind == ranges_.begin()) return Cover::kNone;
    const auto& [start, range] = *std::prev(behind);
    if (start + range.bytes <= address) return Cover::kNone;
    return start <= address && address + bytes <= start + range.bytes ? Cover::kWhole : Cover::kPart;
  }
  // Whether a kernel may use the range, at an address that it was told.
  bool IsOnDevice(uint64_t address, uint64_t bytes) const {
    for (const auto& [start, range] : ranges_) {
      if (range.on_device != 0 && address >= range.on_device && bytes <= range.bytes &&
          address - range.on_device <= range.bytes - bytes)
        return true;
    }
    return false;
  }
  void Add(uint64_t address, const Range& range) { ranges_[address] = range; }
  // The range that starts there; null: none does.
  Range* At(uint64_t address) {
    const auto found = ranges_.find(address);
    return found == ranges_.end() ? nullptr : &found->second;
  }
  void Remove(uint64_t address) { ranges_.erase(address); }
  uint64_t count() const { return ranges_.size(); }

 private:
  std::map<uint64_t, Range> ranges_;  // by address
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_HOST_REGISTRATIONS_H_
