// DeviceMemory: a range of a driver's memory that is allocated whole: a workspace, weights, activations.
//
// Open reserves and maps it whole, in few large pages of one size, which are not shared; the destructor frees it.
// Outside any page pool and budget. The driver outlives it. Threads: one at a time, inside a DriverScope, its
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
  // Allocates at least `bytes`, more than 0, rounded up to pages of the driver's default size for each GiB. A failure
  // leaves nothing behind.
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
  // Most bytes of a page: a model's weights take tens of pages and not thousands, and no page is too large for a device
  // to find memory for it.
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
