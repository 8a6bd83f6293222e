// CopyLane: one way between a device and the memory of this process: a stream of its own, and a buffer through which
// the device copies by itself while the CPU works on another lane's. Copies lie in the buffer one behind the other, so
// that one wait is for many of them.
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
  bool is_open() const { return buffer_ != nullptr; }
  bool is_pinned() const { return is_pinned_; }
  // Of the buffer, that nothing was queued with since the last Wait.
  uint64_t free_bytes() const { return bytes_ - used_bytes_; }
  uint8_t* free() const { return buffer_.get() + used_bytes_; }

  // Copies between the first free bytes and the device, queued; they are taken until the next Wait. After a failure
  // nothing was queued.
  Status Download(Driver& driver, uint64_t from, uint64_t bytes);
  Status Upload(Driver& driver, uint64_t to, uint64_t bytes);
  // Waits for what is queued; then the buffer is free, with what came in it. It is not put off by one refusal: what a
  // copy uses may be unmapped next.
  Status Wait(Driver& driver);

 private:
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };

  std::optional<Stream> stream_;
  std::unique_ptr<uint8_t, Free> buffer_;
  uint64_t bytes_ = 0;       // of the buffer
  uint64_t used_bytes_ = 0;  // of those, taken
  bool is_pinned_ = false;
};

}  // namespace vkv

#endif  // VKV_COPY_LANE_H_
