// Mapper: maps rows of a cache in the background, before they are needed.
//
// It is told how many rows each slot should have and maps them one at a time, slots in turn. It uses free pages and
// reclaims none: when there are none, the request is dropped, and the growth happens in the foreground if it must. With
// no row to map it creates pages for the pool's free list, one at a time, up to the pool's ready_pages. It calls no
// JavaScript and holds no lock across a driver call. A failure that no call waits for is kept as a late error.
//
// Caches of one pool may share a thread: then the slots of all of them take turns, while requests, errors and the wait
// for a row at hand are each cache's own. The thread ends with the last of its mappers.
// Threads: all methods from the owner's thread; the worker is private.
#ifndef VKV_MAPPER_H_
#define VKV_MAPPER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kv_cache.h"
#include "quiet_thread.h"
#include "status.h"

namespace vkv {

struct MapperState {
  bool is_idle = true;            // it has nothing left to do, and no page is being created
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

  // Starts a thread. kDriverCallFailed with errno when the system refuses one.
  Status Start();
  // Works on another mapper's thread. Pre: that one's cache has the same pool. kClosed where it has stopped.
  Status Join(const Mapper& other);
  // Sets the rows each named slot should have; a later request for the same slot replaces an earlier one.
  void Request(std::span<const GrowCommand> commands);
  // Wakes the thread if the pool has fewer free pages than ready_pages. Costs nothing where ready_pages is 0.
  void Refill();
  // Drops the request for a slot and waits until the row at hand, if it is the slot's, is finished: from here on until
  // the next Request the slot's rows are the caller's to change.
  void Cancel(int32_t slot);
  // Drops all requests of this cache and waits until its row or the pool's page at hand, if any, is finished: from here
  // on until the next Request or Refill it takes no page.
  void Quiesce();
  MapperState state() const;
  // Drops all requests, finishes the row at hand, and joins the thread if no other mapper works on it. Nothing is done
  // for this cache any more. Idempotent.
  void Stop();

 private:
  class Worker;

  void DropRequests(std::unique_lock<std::mutex>& lock);

  KvCache& cache_;
  std::shared_ptr<Worker> worker_;  // null: not started, or stopped

  // Guarded by the worker's mutex.
  std::vector<int32_t> wanted_rows_;  // by slot; 0: nothing
  size_t queued_slots_ = 0;           // in the worker's queue
  MapperState state_;                 // its is_idle aside
};

}  // namespace vkv

#endif  // VKV_MAPPER_H_
