// Cublas: NVIDIA's matrix products, from the library that is installed beside the CUDA toolkit; opened at run time,
// typed here by hand, so that the package builds and runs without it.
//
// Owns one handle, bound to one stream of the context that is current when it is opened, and queues there. The library
// is never closed, because it does not survive being unloaded after use. Threads: one at a time, inside a DriverScope
// of that context; also for its destruction, before which the stream must have finished.
#ifndef VKV_CUDA_CUBLAS_H_
#define VKV_CUDA_CUBLAS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "driver.h"

namespace vkv::cuda {

// The parts of cuBLAS's interface that are used; numbers and prototypes are those of cublas_api.h since CUDA 11, when
// the type of `compute` became one of its own.
using cublasHandle_t = struct cublasContext*;
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cudaDataType_t : int { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum cublasComputeType_t : int { CUBLAS_COMPUTE_32F = 68 };
enum cublasGemmAlgo_t : int { CUBLAS_GEMM_DEFAULT = -1 };

// X(name, parameters): every entry point is required, and answers with a cublasStatus_t, 0 being success.
// clang-format off
#define VKV_CUBLAS_ENTRY_POINTS(X) \
  X(cublasCreate_v2, (cublasHandle_t* handle)) \
  X(cublasDestroy_v2, (cublasHandle_t handle)) \
  X(cublasGetVersion_v2, (cublasHandle_t handle, int* version)) \
  X(cublasSetStream_v2, (cublasHandle_t handle, void* stream)) \
  X(cublasSetWorkspace_v2, (cublasHandle_t handle, void* workspace, size_t bytes)) \
  X(cublasGemmEx, \
    (cublasHandle_t handle, cublasOperation_t operation_a, cublasOperation_t operation_b, int m, int n, int k, \
     const void* alpha, const void* a, cudaDataType_t type_a, int lda, const void* b, cudaDataType_t type_b, int ldb, \
     const void* beta, void* c, cudaDataType_t type_c, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algorithm))
// clang-format on

// output[row, o] = Σ input[row, i] · weight[o, i], plus the content of output if it `adds`; all row-major. Sums and
// output are float; input and weight are of one type.
struct CublasProduct {
  const void* weight = nullptr;  // [output, input]
  const void* input = nullptr;   // [row, input]
  float* output = nullptr;       // [row, output]
  int rows = 0;
  int inputs = 0;
  int outputs = 0;
  cudaDataType_t type = CUDA_R_32F;
  bool adds = false;
};

class Cublas {
 public:
  // `library_path`: the library to open; null tries the usual places, newest first, and takes the first library that
  // works in this context. Fails with kLibraryUnavailable (call: "dlopen" or the missing entry point), or
  // kDriverCallFailed with cuBLAS's own status, and leaves nothing behind.
  static Status Open(const char* library_path, Stream stream, std::unique_ptr<Cublas>& cublas);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  const std::string& version() const { return version_; }  // "12.8"

  // Memory of the device's for its kernels, aligned to 256 bytes, in place of what it would allocate by itself, also in
  // the middle of a stream's capture. Before the first product. How much it asks for depends on the device.
  Status SetWorkspace(uint64_t address, uint64_t bytes);
  static uint64_t WorkspaceBytes(int32_t compute_capability);

  // In float32 throughout where that is the type: never in TF32.
  Status Multiply(const CublasProduct& product);

  // The context is gone with all that was in it: frees nothing.
  void Forget() { handle_ = nullptr; }

 private:
  Cublas() = default;

  static Status OpenLibrary(const char* library_path, Stream stream, std::unique_ptr<Cublas>& cublas);

#define VKV_POINTER(name, parameters) int(*name##_) parameters = nullptr;
  VKV_CUBLAS_ENTRY_POINTS(VKV_POINTER)
#undef VKV_POINTER
  cublasHandle_t handle_ = nullptr;
  std::string version_;
};

}  // namespace vkv::cuda

#endif  // VKV_CUDA_CUBLAS_H_
