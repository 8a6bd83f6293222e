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
#include <vector>

#include "kernels/cpu/parallel_loop.h"
#include "quiet_thread.h"

namespace vkv::kernels {

class WorkerPool final : public ParallelLoop {
 public:
  WorkerPool() = default;
  ~WorkerPool() override { Stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Run(int64_t tasks, int threads, Task task, void* context) override;

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
