// Mapper: the background thread of a cache that maps rows before they are needed.
//
// It is told how many rows each slot should have and maps them one at a time, slots in turn. It uses free pages and
// reclaims none: when there are none, the request is dropped, and the growth happens in the foreground if it must. With
// no row to map it creates pages for the pool's free list, one at a time, up to the pool's ready_pages. It calls no
// JavaScript and holds no lock across a driver call. A failure that no call waits for is kept as a late error.
// Threads: all methods from the owner's thread; the worker is private.
#ifndef VKV_MAPPER_H_
#define VKV_MAPPER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "kv_cache.h"
#include "quiet_thread.h"
#include "status.h"

namespace vkv {

struct MapperState {
  bool is_idle = true;            // it has nothing left to do
  uint64_t late_errors = 0;       // failures of the driver so far
  Status last_error;              // the last of them
  uint64_t dropped_requests = 0;  // for want of room: pages, device memory, kernel mappings
};

class Mapper {
 public:
  explicit Mapper(KvCache& cache);
  ~Mapper() { Stop(); }
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;

  // Starts the thread. kDriverCallFailed with errno when the system refuses one.
  Status Start();
  // Sets the rows each named slot should have; a later request for the same slot replaces an earlier one.
  void Request(std::span<const GrowCommand> commands);
  // Wakes the thread if the pool has fewer free pages than ready_pages. Costs nothing where ready_pages is 0.
  void Refill();
  // Drops the request for a slot and waits until the row at hand, if it is the slot's, is finished: from here on until
  // the next Request the slot's rows are the caller's to change.
  void Cancel(int32_t slot);
  // Drops all requests and waits until the row or page at hand, if any, is finished: from here on until the next
  // Request or Refill it takes no page.
  void Quiesce();
  MapperState state() const;
  // Finishes the row at hand and joins. Idempotent.
  void Stop();

 private:
  static constexpr int32_t kNoSlot = -1;

  void Run();
  // Maps one row of the next slot, or creates one page for the free list; releases the lock meanwhile.
  void MapRow(std::unique_lock<std::mutex>& lock);
  void CreatePage(std::unique_lock<std::mutex>& lock);

  KvCache& cache_;
  QuietThread thread_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::condition_variable row_finished_;
  std::vector<int32_t> wanted_rows_;  // by slot; 0: nothing
  std::deque<int32_t> queue_;         // slots with a request, each once
  int32_t working_slot_ = kNoSlot;
  bool is_working_cancelled_ = false;
  bool wants_pages_ = false;  // the free list may be short
  bool is_creating_ = false;  // a page is being created for it
  bool is_stopping_ = false;
  uint64_t late_errors_ = 0;
  uint64_t dropped_requests_ = 0;
  Status last_error_;
};

}  // namespace vkv

#endif  // VKV_MAPPER_H_
