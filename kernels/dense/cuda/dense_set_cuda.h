// CudaDense: the dense arithmetic on a CUDA device, queued on one stream: by the package's kernels, matrix products by
// cuBLAS where it is used and has more than a few rows.
//
// Owns cuBLAS's handle and the memory that it works in, and a workspace for activations in the type of 16-bit weights,
// as cuBLAS multiplies numbers of one type only; so everything goes to the one stream it was opened for, in order.
// Nothing is allocated, uploaded or waited for after Open. Threads: one at a time, inside a DriverScope; also for its
// destruction, before which the stream must have finished.
#ifndef VKV_KERNELS_DENSE_CUDA_DENSE_SET_CUDA_H_
#define VKV_KERNELS_DENSE_CUDA_DENSE_SET_CUDA_H_

#include <memory>
#include <string>

#include "cuda/cublas.h"
#include "cuda/driver_cuda.h"
#include "device_memory.h"
#include "kernels/cuda/kernel_launcher.h"
#include "kernels/dense/dense_set.h"

namespace vkv::kernels {

// Which cuBLAS. kNone: the package's kernels multiply. kUsual: the one in the usual places, or none where none works.
// kPath: the library at `path`; when it does not work, opening fails.
struct CublasChoice {
  enum class Kind { kNone, kUsual, kPath } kind = Kind::kNone;
  std::string path;
  uint64_t workspace_bytes = 0;  // rounded up to pages; more than 0 with cuBLAS
};

class CudaDense final : public DenseSet {
 public:
  // `module` is one that the driver has loaded. A failure leaves nothing behind. `driver` outlives the set.
  static Status Open(vkv::cuda::DriverCuda& driver, const std::string& module, Stream stream,
                     const CublasChoice& choice, std::unique_ptr<DenseSet>& set);
  ~CudaDense() override;

  const char* name() const override { return name_.c_str(); }  // "cublas 12.8", "sm_90"
  Status Multiply(const ProductInput& input, std::span<const Product> products) override;
  Status Normalize(const Normalization& command, int64_t rows) override;
  Status Rotate(const Rotation& command, int64_t rows) override;
  Status Gate(const Gating& command) override;
  Status Cap(const Capping& command) override;
  Status Gather(const Gathering& command, std::span<const int32_t> tokens) override;

 private:
  CudaDense() = default;

  Status OpenCublas(const CublasChoice& choice);
  // Where it can, and has more rows than our own kernel is faster with.
  bool UsesCublas(const ProductInput& input, const Product& product) const;
  // `narrowed` is the type in which the workspace holds the input's rows; float32: it does not.
  Status MultiplyByCublas(const ProductInput& input, const Product& product, Dtype& narrowed);

  std::unique_ptr<cuda::KernelLauncher> launcher_;
  std::unique_ptr<vkv::cuda::Cublas> cublas_;  // null: our own kernels multiply
  std::unique_ptr<DeviceMemory> workspace_;    // with cuBLAS, of narrowed activations
  std::unique_ptr<DeviceMemory> cublas_workspace_;
  std::string name_;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_DENSE_CUDA_DENSE_SET_CUDA_H_
