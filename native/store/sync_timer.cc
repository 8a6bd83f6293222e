#include "store/sync_timer.h"

#include <signal.h>

#include <chrono>

#include "host/system_calls.h"

namespace vkv::store {

Status SyncTimer::Start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(
      &thread_, nullptr,
      [](void* timer) -> void* {
        static_cast<SyncTimer*>(timer)->Run();
        return nullptr;
      },
      this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return host::SystemError(Code::kDriverCallFailed, "pthread_create", error);
  is_started_ = true;
  return Ok();
}

void SyncTimer::Hurry() {
  {
    std::lock_guard lock(mutex_);
    is_hurried_ = true;
  }
  wake_.notify_one();
}

void SyncTimer::Stop() {
  if (!is_started_) return;
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_one();
  pthread_join(thread_, nullptr);
  is_started_ = false;
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
