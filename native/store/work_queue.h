// WorkQueue: the threads of a store, and what they are to do. Reads go before writes on all threads but one, so that
// neither starves the other. Each thread has a scratch buffer. Threads: any may add work.
#ifndef VKV_STORE_WORK_QUEUE_H_
#define VKV_STORE_WORK_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "quiet_thread.h"
#include "status.h"
#include "store/block_file.h"

namespace vkv::store {

// Of a thread's scratch buffer.
inline constexpr uint64_t kScratchBytes = 1 << 20;

class WorkQueue {
 public:
  using Work = std::function<void(AlignedBuffer& scratch)>;

  WorkQueue() = default;
  ~WorkQueue() { Stop(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // kDriverCallFailed with errno when the system refuses a thread or memory; then none runs.
  Status Start(uint32_t threads);
  void AddRead(Work work);
  void AddWrite(Work work);
  // Ends what is being done, drops the rest, and joins. Idempotent.
  void Stop();

 private:
  struct Worker {
    WorkQueue* queue;
    std::unique_ptr<AlignedBuffer> scratch;
    bool writes_first;
    QuietThread thread;

    void Run() { queue->Run(*this); }
  };

  void Add(std::deque<Work>& queue, Work work);
  // Pre: there is some.
  std::deque<Work>& NextFor(const Worker& worker);
  void Run(Worker& worker);

  std::vector<std::unique_ptr<Worker>> workers_;

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::deque<Work> reads_;
  std::deque<Work> writes_;
  bool is_stopping_ = false;
};

}  // namespace vkv::store

#endif  // VKV_STORE_WORK_QUEUE_H_
