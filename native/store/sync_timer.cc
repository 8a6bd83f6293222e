#include "store/sync_timer.h"

#include <chrono>

namespace vkv::store {

Status SyncTimer::Start() { return thread_.Start<SyncTimer, &SyncTimer::Run, Standing::kBackground>(this, "vkv-sync"); }

void SyncTimer::Hurry() {
  {
    std::lock_guard lock(mutex_);
    is_hurried_ = true;
  }
  wake_.notify_one();
}

void SyncTimer::Stop() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_one();
  thread_.Join();
}

void SyncTimer::Run() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    wake_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::seconds(1),
                     [this] { return is_stopping_ || is_hurried_; });
    if (is_stopping_) return;
    is_hurried_ = false;
    lock.unlock();
    call_();
    lock.lock();
  }
}

}  // namespace vkv::store
