#include "copy_lane.h"

namespace vkv {
namespace {

constexpr uint64_t kRegistrableBytes = 4096;

}  // namespace

CopyLane::~CopyLane() {
  if (is_pinned_) (void)buffer_.release();
}

Status CopyLane::Open(Driver& driver, uint64_t bytes) {
  if (!stream_) {
    Stream made = 0;
    VKV_RETURN_IF_ERROR(driver.CreateStream(made));
    stream_ = made;
  }
  if (buffer_) return Ok();
  const uint64_t whole = (bytes + kRegistrableBytes - 1) / kRegistrableBytes * kRegistrableBytes;
  buffer_.reset(static_cast<uint8_t*>(std::aligned_alloc(kRegistrableBytes, whole)));
  if (!buffer_) return Fail(Code::kDriverCallFailed, "aligned_alloc", static_cast<int64_t>(whole));
  const Status status = driver.RegisterHost(reinterpret_cast<uint64_t>(buffer_.get()), whole);
  is_pinned_ = status.ok();
  bytes_ = whole;
  return status.code == Code::kDriverLost ? status : Ok();
}

Status CopyLane::Close(Driver& driver) {
  const auto is_over = [](const Status& status) { return status.ok() || status.code == Code::kDriverLost; };
  if (used_bytes_ != 0) {
    const Status waited = Wait(driver);
    if (!is_over(waited)) return waited;
  }
  if (is_pinned_) {
    const Status status = driver.UnregisterHost(reinterpret_cast<uint64_t>(buffer_.get()));
    if (!is_over(status)) return status;
    if (!status.ok()) (void)buffer_.release();
    is_pinned_ = false;
  }
  buffer_.reset();
  bytes_ = 0;
  if (!stream_) return Ok();
  const Status status = driver.DestroyStream(*stream_);
  if (!is_over(status)) return status;
  stream_.reset();
  return Ok();
}

Status CopyLane::Download(Driver& driver, uint64_t from, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(driver.Download(free(), from, bytes, *stream_));
  used_bytes_ += bytes;
  return Ok();
}

Status CopyLane::Upload(Driver& driver, uint64_t to, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(driver.Upload(to, free(), bytes, *stream_));
  used_bytes_ += bytes;
  return Ok();
}

Status CopyLane::Wait(Driver& driver) {
  if (used_bytes_ == 0) return Ok();
  Status status = driver.SynchronizeStream(*stream_);
  if (!status.ok()) status = driver.SynchronizeStream(*stream_);
  if (status.ok()) used_bytes_ = 0;
  return status;
}

}  // namespace vkv
