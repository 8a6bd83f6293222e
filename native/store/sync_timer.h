// SyncTimer: the thread that calls a function once a second, and at once when it is told to. For durability `interval`.
// It waits for a file descriptor, since that has a time limit of the monotonic clock in every C library that releases
// run with; a condition variable has one only since glibc 2.30.
#ifndef VKV_STORE_SYNC_TIMER_H_
#define VKV_STORE_SYNC_TIMER_H_

#include <atomic>
#include <chrono>
#include <functional>

#include "quiet_thread.h"
#include "status.h"

namespace vkv::store {

class SyncTimer {
 public:
  explicit SyncTimer(std::function<void()> call, std::chrono::milliseconds interval = std::chrono::seconds(1))
      : call_(std::move(call)), interval_(interval) {}
  ~SyncTimer();
  SyncTimer(const SyncTimer&) = delete;
  SyncTimer& operator=(const SyncTimer&) = delete;

  // kDriverCallFailed when the system refuses a thread or a file descriptor.
  Status Start();
  // No effect where it was not started.
  void Hurry();
  // Joins. Idempotent.
  void Stop();

 private:
  void Run();

  const std::function<void()> call_;
  const std::chrono::milliseconds interval_;
  std::atomic<int> wake_{-1};  // an eventfd; -1 until it is started
  std::atomic<bool> is_stopping_{false};
  QuietThread thread_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_SYNC_TIMER_H_
