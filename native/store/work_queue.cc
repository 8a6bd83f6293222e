#include "store/work_queue.h"

#include <errno.h>

#include "host/system_calls.h"

namespace vkv::store {

Status WorkQueue::Start(uint32_t threads) {
  for (uint32_t k = 0; k < threads; ++k) {
    auto worker = std::make_unique<Worker>();
    worker->queue = this;
    worker->scratch = std::make_unique<AlignedBuffer>(kScratchBytes);
    worker->writes_first = k == 0 && threads > 1;
    const Status status =
        worker->scratch->bytes() == 0
            ? host::SystemError(Code::kDriverCallFailed, "aligned_alloc", ENOMEM)
            : worker->thread.Start<Worker, &Worker::Run, Standing::kBackground>(worker.get(), "vkv-store");
    if (!status.ok()) {
      Stop();
      return status;
    }
    workers_.push_back(std::move(worker));
  }
  return Ok();
}

void WorkQueue::AddRead(Work work) { Add(reads_, std::move(work)); }

void WorkQueue::AddWrite(Work work) { Add(writes_, std::move(work)); }

void WorkQueue::Add(std::deque<Work>& queue, Work work) {
  {
    std::lock_guard lock(mutex_);
    queue.push_back(std::move(work));
  }
  wake_.notify_one();
}

std::deque<WorkQueue::Work>& WorkQueue::NextFor(const Worker& worker) {
  if (worker.writes_first && !writes_.empty()) return writes_;
  return reads_.empty() ? writes_ : reads_;
}

void WorkQueue::Run(Worker& worker) {
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return is_stopping_ || !reads_.empty() || !writes_.empty(); });
      if (is_stopping_) return;
      std::deque<Work>& from = NextFor(worker);
      work = std::move(from.front());
      from.pop_front();
    }
    work(*worker.scratch);
  }
}

void WorkQueue::Stop() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  for (const auto& worker : workers_) worker->thread.Join();
  workers_.clear();
}

}  // namespace vkv::store
