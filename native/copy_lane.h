// CopyLane: one way between a device and the memory of this process: a stream of its own, and a buffer through which
// the device copies by itself while the CPU works on another lane's.
//
// The buffer is registered with the device; where that is refused (a limit on locked memory, an old library) copies go
// through it all the same and wait. Threads: one at a time. All calls inside a DriverScope.
#ifndef VKV_COPY_LANE_H_
#define VKV_COPY_LANE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

#include "driver.h"

namespace vkv {

class CopyLane {
 public:
  CopyLane() = default;
  ~CopyLane();  // pre: closed, or the device is lost: memory that is still registered is never freed
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  // Makes the stream and a buffer of so many bytes where they are missing.
  Status Open(Driver& driver, uint64_t bytes);
  // Waits, and gives everything back. Idempotent, retryable.
  Status Close(Driver& driver);

  Stream stream() const { return *stream_; }
  uint8_t* buffer() const { return buffer_.get(); }
  bool is_pinned() const { return is_pinned_; }
  // Whether something was queued since the last Wait.
  bool is_busy() const { return is_busy_; }

  // Copies between the buffer's first bytes and the device, queued. After a failure nothing was.
  Status Download(Driver& driver, uint64_t from, uint64_t bytes);
  Status Upload(Driver& driver, uint64_t to, uint64_t bytes);
  // Waits for what is queued. It is not put off by one refusal: what a copy uses may be unmapped next.
  Status Wait(Driver& driver);

 private:
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };

  std::optional<Stream> stream_;
  std::unique_ptr<uint8_t, Free> buffer_;
  bool is_pinned_ = false;
  bool is_busy_ = false;
};

}  // namespace vkv

#endif  // VKV_COPY_LANE_H_
