#include "kernels/cpu/worker_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace vkv::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the pause between two kernels of a step, shorter than a step.
constexpr std::chrono::microseconds kSpin(50);
constexpr int kLooksPerClock = 64;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Spins until `is_ready()`; false when that took too long.
template <typename Condition>
bool SpinUntil(Condition is_ready) {
  const Clock::time_point end = Clock::now() + kSpin;
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (is_ready()) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

void WorkerPool::Run(int64_t tasks, int threads, Task task, void* context) {
  threads = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (threads > 1 && !is_stopped_) Grow(threads - 1);
  threads = is_stopped_ ? 1 : std::min(threads, static_cast<int>(workers_.size()) + 1);
  if (threads <= 1) {
    for (int64_t index = 0; index < tasks; ++index) task(context, index, 0);
    return;
  }
  task_ = task;
  context_ = context;
  tasks_ = tasks;
  threads_ = threads;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    // Under the lock, so that no worker falls asleep between its last look and the call.
    const std::lock_guard lock(mutex_);
    round_.fetch_add(1, std::memory_order_release);
    if (sleepers_ > 0) wake_.notify_all();
  }
  TakeTasks(/*worker=*/0);
  while (busy_.load(std::memory_order_acquire) != 0) {
    if (!SpinUntil([&] { return busy_.load(std::memory_order_acquire) == 0; })) sched_yield();
  }
}

void WorkerPool::Stop() {
  if (is_stopped_) return;
  is_stopped_ = true;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_.store(true, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    wake_.notify_all();
  }
  for (Worker* worker : workers_) {
    worker->thread.Join();
    delete worker;
  }
  workers_.clear();
}

void WorkerPool::Grow(int threads) {
  while (static_cast<int>(workers_.size()) < threads) {
    auto* worker = new Worker;
    worker->pool = this;
    worker->number = static_cast<int>(workers_.size()) + 1;
    worker->seen_round = round_.load();
    if (!worker->thread.Start<Worker, &Worker::Run, Standing::kPatient>(worker, "vkv-kernels").ok()) {
      delete worker;  // the others do its part
      return;
    }
    workers_.push_back(worker);
  }
}

void WorkerPool::Work(const Worker& worker) {
  uint64_t seen = worker.seen_round;
  const auto has_news = [&] { return round_.load(std::memory_order_acquire) != seen; };
  while (true) {
    if (!SpinUntil(has_news)) {
      std::unique_lock lock(mutex_);
      ++sleepers_;
      wake_.wait(lock, has_news);
      --sleepers_;
    }
    seen = round_.load(std::memory_order_acquire);
    if (is_stopping_.load(std::memory_order_relaxed)) return;
    if (worker.number < threads_) TakeTasks(worker.number);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void WorkerPool::TakeTasks(int worker) {
  for (int64_t index = next_.fetch_add(1, std::memory_order_relaxed); index < tasks_;
       index = next_.fetch_add(1, std::memory_order_relaxed)) {
    task_(context_, index, worker);
  }
}

}  // namespace vkv::kernels
