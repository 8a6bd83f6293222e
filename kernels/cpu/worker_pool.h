// WorkerPool: a few threads that share the tasks of one loop at a time with the calling thread.
//
// One pool per Node environment, started when first used and joined before the environment ends. Workers spin for some
// microseconds after a loop, because a decoding step is many short loops, and sleep after that. Threads: Run and Stop
// from the owner's thread only. A pool whose threads the system refused, or that was stopped, does everything in the
// caller.
#ifndef VKV_KERNELS_CPU_WORKER_POOL_H_
#define VKV_KERNELS_CPU_WORKER_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <vector>

#include "quiet_thread.h"

namespace vkv::kernels {

class WorkerPool {
 public:
  // Does one task; `worker` is 0 … threads − 1, and no two tasks run with the same one at a time.
  using Task = void (*)(void* context, int64_t task, int worker);

  WorkerPool() = default;
  ~WorkerPool() { Stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Does tasks 0 … tasks − 1 with at most `threads` threads, the caller's included, and returns when all are done.
  void Run(int64_t tasks, int threads, Task task, void* context);

  template <typename Body>  // body(task, worker)
  void ForEach(int64_t tasks, int threads, Body&& body) {
    Run(
        tasks, threads,
        [](void* context, int64_t task, int worker) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
        },
        &body);
  }

  // Joins the threads for good. Idempotent.
  void Stop();

 private:
  struct Worker {
    WorkerPool* pool = nullptr;
    int number = 0;
    uint64_t seen_round = 0;  // the last round that it took part in or skipped
    QuietThread thread;

    void Run() { pool->Work(*this); }
  };

  void Work(const Worker& worker);
  void TakeTasks(int worker);
  void Grow(int threads);

  std::vector<Worker*> workers_;  // at fixed addresses, which their threads keep
  bool is_stopped_ = false;

  // The current loop. Written before round_ moves, read after.
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t tasks_ = 0;
  int threads_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};  // workers that have not finished the round
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> is_stopping_{false};

  std::mutex mutex_;  // for sleeping only
  std::condition_variable wake_;
  int sleepers_ = 0;  // guarded by mutex_
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CPU_WORKER_POOL_H_
