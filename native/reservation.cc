#include "reservation.h"

namespace vkv {

Status Reservation::Open(Driver& driver, uint64_t bytes, uint64_t page_bytes, Reservation& reservation) {
  uint64_t address = 0;
  VKV_RETURN_IF_ERROR(driver.Reserve(bytes, page_bytes, address));
  reservation.driver_ = &driver;
  reservation.address_ = address;
  reservation.bytes_ = bytes;
  reservation.page_bytes_ = page_bytes;
  return Ok();
}

Status Reservation::MapRun(uint64_t offset, std::span<const PageHandle> pages, uint64_t& left_mapped) {
  left_mapped = 0;
  const uint64_t start = address_ + offset;
  uint64_t mapped = 0;
  Status status = driver_->MapEach(start, page_bytes_, pages, mapped);
  if (status.ok()) status = driver_->SetAccess(start, mapped * page_bytes_);
  if (status.ok()) return status;
  if (mapped > 0 && !driver_->Unmap(start, mapped * page_bytes_).ok()) left_mapped = mapped;
  return status;
}

Status Reservation::UnmapRun(uint64_t offset, uint64_t pages) {
  return driver_->Unmap(address_ + offset, pages * page_bytes_);
}

Status Reservation::Close() {
  if (address_ == 0) return Ok();
  const Status status = driver_->FreeReservation(address_, bytes_);
  if (!status.ok() && status.code != Code::kDriverLost) return status;
  address_ = 0;
  return Ok();
}

}  // namespace vkv
