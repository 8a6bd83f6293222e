// RowScatter: copies packed rows on a device to many places that the device can write to, in one operation of it. What
// does that is no part of a driver: a kernel, which the driver may refuse.
#ifndef VKV_ROW_SCATTER_H_
#define VKV_ROW_SCATTER_H_

#include <cstdint>
#include <span>

#include "driver.h"

namespace vkv {

// Bytes of a packed source, and where they go.
struct PlacedRows {
  uint64_t to = 0;    // as the device sees it
  uint32_t from = 0;  // byte of the source
  uint32_t bytes = 0;
};

class RowScatter {
 public:
  virtual ~RowScatter() = default;

  // Queued on `stream`. No two places overlap. After a failure some of it may be queued. Inside a DriverScope.
  virtual Status Scatter(uint64_t source, std::span<const PlacedRows> rows, Stream stream) = 0;
};

}  // namespace vkv

#endif  // VKV_ROW_SCATTER_H_
