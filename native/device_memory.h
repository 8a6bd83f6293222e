// DeviceMemory: a stretch of a driver's memory that is all there from the start: a workspace, weights, activations.
//
// Reserved and mapped whole by Open, in few large pages of one size, which nobody shares; given back by the destructor.
// Beside any page pool and its budget. The driver outlives it. Threads: one at a time, inside a DriverScope, its
// destruction included.
#ifndef VKV_DEVICE_MEMORY_H_
#define VKV_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "driver.h"

namespace vkv {

class DeviceMemory {
 public:
  // At least `bytes`, more than 0, rounded up to pages of the driver's default size for each GiB. What fails leaves
  // nothing behind.
  static Status Open(Driver& driver, uint64_t bytes, std::unique_ptr<DeviceMemory>& memory);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

  // Copies between plain memory and the bytes from `at` on, which are inside; done when the call returns. With a
  // stream, what is queued there is waited for first; without, they come where Driver::Write does. No bytes wait as
  // well.
  Status Write(uint64_t at, const void* from, uint64_t bytes, std::optional<Stream> stream);
  Status Read(void* to, uint64_t at, uint64_t bytes, std::optional<Stream> stream);

 private:
  // What one page holds at most: a model's weights take tens of creates and not thousands, and no page is so large that
  // a device could not find it.
  static constexpr uint64_t kMostPageBytes = uint64_t{1} << 30;

  explicit DeviceMemory(Driver& driver) : driver_(driver) {}

  Status Map(uint64_t bytes);

  Driver& driver_;
  uint64_t page_bytes_ = 0;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;         // reserved
  uint64_t mapped_bytes_ = 0;  // from the start
  std::vector<PageHandle> pages_;
};

}  // namespace vkv

#endif  // VKV_DEVICE_MEMORY_H_
