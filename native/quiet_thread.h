// QuietThread: a thread of the addon's own; all of them are made here. Signals that are sent to the process are handled
// by Node's own threads. Those that an instruction raises in the thread itself are not blocked: the kernel ends a
// process at once where they are, and neither mapped_file.h nor a crash reporter or sanitizer would learn of them. A
// write beyond a limit of file sizes does not end the process (EFBIG). It has a name, which `top -H` and debuggers
// show. One that works in the background leaves the processors to Node's threads and the kernels' where there are too
// few for all.
//
// Threads: Start and Join from the owner's thread.
#ifndef VKV_QUIET_THREAD_H_
#define VKV_QUIET_THREAD_H_

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "status.h"

namespace vkv {

// How a thread stands to others: as any; as any, but one that wakes up need not wait until its time slice is over;
// behind those of the process.
enum class Standing { kEqual, kPatient, kBackground };

class QuietThread {
 public:
  QuietThread() = default;
  ~QuietThread() { Join(); }
  QuietThread(const QuietThread&) = delete;
  QuietThread& operator=(const QuietThread&) = delete;

  // Runs (owner->*run)() on it. `name`: of 15 characters at most. kDriverCallFailed with errno when the system refuses
  // a thread.
  template <typename Owner, void (Owner::*run)(), Standing standing = Standing::kEqual>
  Status Start(Owner* owner, const char* name) {
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (const int signal : kRaisedByItself) sigdelset(&blocked, signal);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(
        &thread_, nullptr,
        [](void* given) -> void* {
          if constexpr (standing == Standing::kBackground) StandBack();
          if constexpr (standing == Standing::kPatient) TakeLongSlices();
          (static_cast<Owner*>(given)->*run)();
          return nullptr;
        },
        owner);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) return {Code::kDriverCallFailed, "pthread_create", error, error == EAGAIN ? "EAGAIN" : "", 0, 0};
    (void)pthread_setname_np(thread_, name);
    is_started_ = true;
    return Ok();
  }

  // Waits until it has ended. Idempotent; nothing happens where it was not started.
  void Join() {
    if (is_started_) pthread_join(thread_, nullptr);
    is_started_ = false;
  }

 private:
  // Counts from the process's first thread: a thread begins with the niceness of the one that starts it, which may
  // stand back itself. On Linux "process 0" is the calling thread alone.
  static void StandBack() {
    const int process = getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));
    (void)setpriority(PRIO_PROCESS, 0, process + kBackgroundNice);  // the most there is, where that is more
  }

  // A thread that wakes up preempts one whose time slices are longer than its own: on Linux 6.12 and later, while older
  // ones leave slices as they are. No thread gets less of the processors for it.
  static void TakeLongSlices() {
    struct {
      uint32_t size, policy;
      uint64_t flags;
      int32_t nice;
      uint32_t priority;
      uint64_t runtime, deadline, period;
    } attributes{};  // struct sched_attr, whose first 48 bytes every kernel knows
    attributes.size = sizeof attributes;
    attributes.flags = 0x08;  // SCHED_FLAG_KEEP_POLICY
    attributes.nice = getpriority(PRIO_PROCESS, 0);
    attributes.runtime = kLongSliceNs;
    (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
  }

  static constexpr int kRaisedByItself[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};

  static constexpr int kBackgroundNice = 10;            // a tenth of the share of an equal thread
  static constexpr uint64_t kLongSliceNs = 12'000'000;  // others have 3 ms at most by default

  pthread_t thread_{};
  bool is_started_ = false;
};

}  // namespace vkv

#endif  // VKV_QUIET_THREAD_H_
