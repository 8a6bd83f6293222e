// CpuDense: the dense arithmetic on this machine's own memory: divides commands into parts, and lets a few threads do them
// with the widest vectors the machine has.
//
// Products are divided by outputs, everything else by rows; work too small to be worth waking a thread stays in the caller.
// Scratch is a few hundred kilobytes per thread, made at the first product and kept. Calls from one thread at a time.
#ifndef VKV_KERNELS_CPU_DENSE_SET_CPU_H_
#define VKV_KERNELS_CPU_DENSE_SET_CPU_H_

#include <memory>
#include <span>

#include "kernels/cpu/dense.h"
#include "kernels/cpu/worker_pool.h"

namespace vkv::kernels {

class CpuDense {
 public:
  // `threads` counts the caller's. `dense` is one of the kernels of dense.h.
  CpuDense(std::shared_ptr<WorkerPool> pool, int threads, const DenseKernels* dense)
      : pool_(std::move(pool)), threads_(threads), dense_(dense) {}

  const char* name() const { return dense_->name; }

  // Several products of the same input [row, input], as one piece of work. Outputs do not overlap each other or the input.
  void Multiply(const float* input, int64_t rows, int64_t inputs, std::span<const Product> products);
  void Normalize(const Normalization& command, int64_t rows);
  void Rotate(const Rotation& command, int64_t rows);
  void Gate(const float* gate, const float* up, float* output, int64_t count);
  // output[row] = table[tokens[row]], as floats: the embedding. Tokens are in the table.
  void Gather(const void* table, Dtype dtype, int64_t width, std::span<const int32_t> tokens, float* output);

 private:
  int ThreadsFor(int64_t operations) const;

  const std::shared_ptr<WorkerPool> pool_;
  const int threads_;
  const DenseKernels* const dense_;
  std::unique_ptr<float[]> scratch_;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CPU_DENSE_SET_CPU_H_
