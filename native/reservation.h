// Reservation: one range of virtual addresses, freed with the object. It maps and unmaps runs of pages as transactions.
//
// It does not remember what is mapped in it (the slots of kv_cache do) and does not own pages.
// Threads: any, on runs that do not overlap; calls are made inside a DriverScope.
#ifndef VKV_RESERVATION_H_
#define VKV_RESERVATION_H_

#include <cstdint>
#include <span>
#include <utility>

#include "driver.h"
#include "status.h"

namespace vkv {

class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(page_bytes_, other.page_bytes_);
    return *this;
  }
  ~Reservation() { (void)Close(); }

  static Status Open(Driver& driver, uint64_t bytes, uint64_t page_bytes, Reservation& reservation);

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

  // Maps the pages side by side from `offset` on and gives access with one call. On failure nothing is mapped; only
  // when the undo fails as well, the first `left_mapped` pages still are.
  Status MapRun(uint64_t offset, std::span<const PageHandle> pages, uint64_t& left_mapped);
  // Unmaps `pages` pages from `offset` on with one call.
  Status UnmapRun(uint64_t offset, uint64_t pages);
  // Pre: everything unmapped. Idempotent; on failure the range stays and Close can be tried again.
  Status Close();

 private:
  Driver* driver_ = nullptr;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
  uint64_t page_bytes_ = 0;
};

}  // namespace vkv

#endif  // VKV_RESERVATION_H_
