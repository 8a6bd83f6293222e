// CpuDense: the dense arithmetic on this machine's own memory: divides commands into parts, and lets a few threads do
// them with the widest vectors the machine has.
//
// Products are divided by outputs, everything else by rows; work too small to be worth waking a thread stays in the
// caller. Scratch is a few hundred kilobytes per thread, made at the first product and kept. Calls from one thread at a
// time.
#ifndef VKV_KERNELS_DENSE_CPU_DENSE_SET_CPU_H_
#define VKV_KERNELS_DENSE_CPU_DENSE_SET_CPU_H_

#include <memory>
#include <span>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/worker_pool.h"
#include "kernels/dense/cpu/dense.h"
#include "kernels/dense/dense_set.h"

namespace vkv::kernels {

class CpuDense final : public DenseSet {
 public:
  // `threads` counts the caller's. `dense` is one of the kernels of dense.h.
  CpuDense(std::shared_ptr<WorkerPool> pool, int threads, const DenseKernels* dense)
      : pool_(std::move(pool)), threads_(threads), dense_(dense) {}

  const char* name() const override { return dense_->name; }
  Status Multiply(const ProductInput& input, std::span<const Product> products) override;
  Status Normalize(const Normalization& command, int64_t rows) override;
  Status Rotate(const Rotation& command, int64_t rows) override;
  Status RotateNeighbours(const Rotation& command, int64_t rows) override;
  Status Gate(const Gating& command) override;
  Status Cap(const Capping& command) override;
  Status Gather(const Gathering& command, std::span<const int32_t> tokens) override;

 private:
  int ThreadsFor(int64_t operations) const;
  // Calls `rotate(from, to)` for parts of the rows.
  template <typename RotateRows>
  void ForRotatedRows(const Rotation& command, int64_t rows, const RotateRows& rotate);
  Int8Input Quantize(const ProductInput& input);

  const std::shared_ptr<WorkerPool> pool_;
  const int threads_;
  const DenseKernels* const dense_;
  Scratch scratch_;
  Scratch rows_;  // of int8 products: values, then scales
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_DENSE_CPU_DENSE_SET_CPU_H_
