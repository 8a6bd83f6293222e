// Ledger: what one DriverCuda has live: reservations, mappings, pages, streams and events. It is what
// QueryMemory counts and what a closing driver gives back.
//
// It checks nothing: whether a call is allowed is for the CUDA driver to say. An object is noted after the
// call that made it and struck out before the call that ends it, because the driver may hand the same value
// out again at once. Threads: any; one mutex guards all of it and is held across no driver call.
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
    uint64_t page_bytes = 0;  // of all pages together
  };

  // A Remove answers whether the object was there, and how large; when the call fails after all, it is added
  // again.
  void AddReservation(uint64_t address, uint64_t bytes);
  bool RemoveReservation(uint64_t address, uint64_t& bytes);
  void AddMapping(uint64_t address, uint64_t bytes);
  // Strikes out all mappings that begin in the range; `removed` are they, for AddMappings when the call fails
  // after all.
  void RemoveMappings(uint64_t address, uint64_t bytes, std::map<uint64_t, uint64_t>& removed);
  void AddMappings(std::map<uint64_t, uint64_t>& mappings);
  void AddPage(PageHandle page, uint64_t bytes);
  bool RemovePage(PageHandle page, uint64_t& bytes);
  void AddStream(Stream stream);
  bool RemoveStream(Stream stream);
  void AddEvent(Event event);
  bool RemoveEvent(Event event);

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
