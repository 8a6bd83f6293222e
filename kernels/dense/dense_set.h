// DenseSet: a transformer's arithmetic besides attention, on the machine of its activations and weights.
//
// Work is queued in the order of the calls; on the CPU it is done when a call returns. Pre, for every call: buffers are
// as large as the shapes say, tokens and positions are in their tables; the binding's caller checks what can be
// checked. One thread at a time.
#ifndef VKV_KERNELS_DENSE_DENSE_SET_H_
#define VKV_KERNELS_DENSE_DENSE_SET_H_

#include <span>

#include "kernels/dense/dense_commands.h"
#include "status.h"

namespace vkv::kernels {

inline constexpr int64_t kMostNeighbourDim = 1024;

class DenseSet {
 public:
  virtual ~DenseSet() = default;

  // The code that multiplies: "avx512", "sm_90".
  virtual const char* name() const = 0;

  // Several products of the same input, as one piece of work.
  virtual Status Multiply(const ProductInput& input, std::span<const Product> products) = 0;
  virtual Status Normalize(const Normalization& command, int64_t rows) = 0;
  virtual Status Rotate(const Rotation& command, int64_t rows) = 0;
  // The same of heads whose pairs are neighbours, (2 i, 2 i + 1), and lie as Rotate leaves them afterwards. On the CPU
  // alone, up to kMostNeighbourDim elements a head.
  virtual Status RotateNeighbours(const Rotation& command, int64_t) {
    return Fail(Code::kInternal, "rotate", command.dim);
  }
  virtual Status Gate(const Gating& command) = 0;
  virtual Status Cap(const Capping& command) = 0;
  virtual Status Gather(const Gathering& command, std::span<const int32_t> tokens) = 0;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_DENSE_DENSE_SET_H_
