// ParallelLoop: runs the tasks of a loop on threads: those of a WorkerPool, or those of the runtime that calls the
// kernels. It runs one loop at a time; the calling thread takes part.
#ifndef VKV_KERNELS_CPU_PARALLEL_LOOP_H_
#define VKV_KERNELS_CPU_PARALLEL_LOOP_H_

#include <cstdint>
#include <type_traits>

namespace vkv::kernels {

class ParallelLoop {
 public:
  // Does one task; `worker` is 0 … threads − 1, and no two tasks run with the same one at a time.
  using Task = void (*)(void* context, int64_t task, int worker);

  virtual ~ParallelLoop() = default;

  // Does tasks 0 … tasks − 1 with at most `threads` threads, the caller's included, and returns when all are done.
  virtual void Run(int64_t tasks, int threads, Task task, void* context) = 0;

  template <typename Body>  // body(task, worker)
  void ForEach(int64_t tasks, int threads, Body&& body) {
    Run(
        tasks, threads,
        [](void* context, int64_t task, int worker) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
        },
        &body);
  }
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CPU_PARALLEL_LOOP_H_
