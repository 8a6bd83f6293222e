// QuietThread: a thread of the addon's own, in which no signal is handled that was sent: signals belong to Node's own
// threads. SIGBUS is not blocked: it comes of what the thread itself reads (host/mapped_file.h).
//
// Threads: Start and Join from the owner's thread.
#ifndef VKV_QUIET_THREAD_H_
#define VKV_QUIET_THREAD_H_

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "status.h"

namespace vkv {

class QuietThread {
 public:
  QuietThread() = default;
  ~QuietThread() { Join(); }
  QuietThread(const QuietThread&) = delete;
  QuietThread& operator=(const QuietThread&) = delete;

  // Runs (owner->*run)() on it. kDriverCallFailed with errno when the system refuses a thread.
  template <typename Owner, void (Owner::*run)()>
  Status Start(Owner* owner) {
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(
        &thread_, nullptr,
        [](void* given) -> void* {
          (static_cast<Owner*>(given)->*run)();
          return nullptr;
        },
        owner);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) return {Code::kDriverCallFailed, "pthread_create", error, error == EAGAIN ? "EAGAIN" : "", 0, 0};
    is_started_ = true;
    return Ok();
  }

  // Waits until it has ended. Idempotent; nothing happens where it was not started.
  void Join() {
    if (is_started_) pthread_join(thread_, nullptr);
    is_started_ = false;
  }

 private:
  pthread_t thread_{};
  bool is_started_ = false;
};

}  // namespace vkv

#endif  // VKV_QUIET_THREAD_H_
