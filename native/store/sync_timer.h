// SyncTimer: the thread that calls a function once a second, and at once when it is told to. For durability `interval`.
#ifndef VKV_STORE_SYNC_TIMER_H_
#define VKV_STORE_SYNC_TIMER_H_

#include <condition_variable>
#include <functional>
#include <mutex>

#include "quiet_thread.h"
#include "status.h"

namespace vkv::store {

class SyncTimer {
 public:
  explicit SyncTimer(std::function<void()> call) : call_(std::move(call)) {}
  ~SyncTimer() { Stop(); }

  // kDriverCallFailed when the system refuses a thread.
  Status Start();
  void Hurry();
  // Joins. Idempotent.
  void Stop();

 private:
  void Run();

  const std::function<void()> call_;
  QuietThread thread_;

  std::mutex mutex_;  // guards both below
  std::condition_variable wake_;
  bool is_hurried_ = false;
  bool is_stopping_ = false;
};

}  // namespace vkv::store

#endif  // VKV_STORE_SYNC_TIMER_H_
