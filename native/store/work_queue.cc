#include "store/work_queue.h"

#include <errno.h>
#include <signal.h>

#include "host/system_calls.h"
#include "store/read_plan.h"

namespace vkv::store {
Status WorkQueue::Start(uint32_t threads) {
  sigset_t all, before;  // signals belong to Node's own threads; a write beyond a size limit gives EFBIG
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  for (uint32_t k = 0; k < threads && error == 0; ++k) {
    auto worker = std::make_unique<Worker>(
        Worker{this, std::make_unique<AlignedBuffer>(kScratchBytes), k == 0 && threads > 1, {}});
    error = worker->scratch->bytes() == 0 ? ENOMEM
                                          : pthread_create(
                                                &worker->thread, nullptr,
                                                [](void* given) -> void* {
                                                  auto& self = *static_cast<Worker*>(given);
                                                  self.queue->Run(self);
                                                  return nullptr;
                                                },
                                                worker.get());
    if (error == 0) workers_.push_back(std::move(worker));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) return Ok();
  Stop();
  return host::SystemError(Code::kDriverCallFailed, "pthread_create", error);
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

void WorkQueue::Run(Worker& worker) {
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return is_stopping_ || !reads_.empty() || !writes_.empty(); });
      if (is_stopping_) return;
      std::deque<Work>& first = worker.writes_first ? writes_ : reads_;
      std::deque<Work>& second = worker.writes_first ? reads_ : writes_;
      std::deque<Work>& from = first.empty() ? second : first;
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
  for (const auto& worker : workers_) pthread_join(worker->thread, nullptr);
  workers_.clear();
}

}  // namespace vkv::store
