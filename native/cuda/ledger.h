// Ledger: the live objects of one DriverCuda: reservations, mappings, pages, streams, events and
// registered memory. QueryMemory counts them, and a closing driver gives them back.
//
// It refuses nothing: the CUDA driver decides what is allowed. An object is added after the call that creates it
// and removed before the call that ends it, because the driver may return the same value
// again at once. Threads: any; one mutex guards all of it and is held across no driver call.
#ifndef VKV_CUDA_LEDGER_H_
#define VKV_CUDA_LEDGER_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "cuda/cuda_api.h"
#include "driver.h"

namespace vkv::cuda {

class Ledger {
 public:
  struct Contents {
    std::map<uint64_t, uint64_t> reservations;       // address -> bytes
    std::map<uint64_t, uint64_t> mappings;           // address -> bytes
    std::unordered_map<PageHandle, uint64_t> pages;  // handle -> bytes
    std::unordered_set<Stream> streams;
    std::unordered_set<Event> events;
    std::unordered_set<uint64_t> registrations;  // of the CPU's memory, by address
    uint64_t page_bytes = 0;                     // of all pages together
  };

  // A Remove returns whether the object was there, and its size; when the driver call fails, the caller adds it
  // again.
  void AddReservation(uint64_t address, uint64_t bytes);
  bool RemoveReservation(uint64_t address, uint64_t& bytes);
  void AddMapping(uint64_t address, uint64_t bytes);
  // Removes all mappings that begin in the range, and returns them in `removed`, for AddMappings when the driver call
  // fails. Returns whether they fill the range.
  bool RemoveMappings(uint64_t address, uint64_t bytes, std::map<uint64_t, uint64_t>& removed);
  void AddMappings(std::map<uint64_t, uint64_t>& mappings);
  void AddPage(PageHandle page, uint64_t bytes);
  bool RemovePage(PageHandle page, uint64_t& bytes);
  void AddStream(Stream stream);
  bool RemoveStream(Stream stream);
  void AddEvent(Event event);
  bool RemoveEvent(Event event);
  void AddRegistration(uint64_t address);
  bool RemoveRegistration(uint64_t address);

  Leftovers Count() const;
  uint64_t page_bytes() const;
  // Hands everything over and is empty afterwards.
  Contents Take();

 private:
  mutable std::mutex mutex_;  // guards contents_
  Contents contents_;
};

}  // namespace vkv::cuda

#endif  // VKV_CUDA_LEDGER_H_
