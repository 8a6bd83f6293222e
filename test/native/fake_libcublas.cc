// A library that exports the cuBLAS entry points in use, and multiplies with plain loops, at once, wherever its
// pointers point: for tests on a simulated device with immediate streams, whose memory is this process's own.
// scripts/build-fake-libcuda.cjs builds it.
//
// It takes every transposition and leading dimension, checks what cuBLAS checks, and has room for few handles, so that
// one that is not given back is noticed. What it does wrong is in the environment variable FAKE_LIBCUBLAS, read at
// every call:
// "<entry point>:<status>".
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "cuda/cublas.h"
#include "kernels/float16.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace vkv::cuda;  // cuBLAS's own names, as its library has them

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 1;
constexpr int kAllocFailed = 3;
constexpr int kInvalidValue = 7;
constexpr int kNotSupported = 15;
constexpr size_t kMostHandles = 4;
constexpr size_t kWorkspaceAlignment = 256;
constexpr size_t kLeastWorkspaceBytes = size_t{4} << 20;
constexpr int kVersion = 120'899;

struct State {
  bool has_stream = false;
  bool has_workspace = false;  // without one of the caller's a product allocates, which no capture takes
};
using Handle = State*;
// Lives as long as the process; one that is left when its device is lost is no leak.
std::set<Handle>& handles = *new std::set<Handle>();

// What FAKE_LIBCUBLAS has this entry point answer, or success.
int Refusal(const char* name) {
  const char* const fault = std::getenv("FAKE_LIBCUBLAS");
  const size_t length = std::strlen(name);
  if (fault == nullptr || std::strncmp(fault, name, length) != 0 || fault[length] != ':') return kSuccess;
  return std::atoi(fault + length + 1);
}

float ElementAt(const void* from, cudaDataType_t type, int64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[index];
  if (type == CUDA_R_16F) return vkv::kernels::ToFloat(static_cast<const vkv::kernels::Half*>(from)[index]);
  return vkv::kernels::ToFloat(static_cast<const vkv::kernels::Bfloat*>(from)[index]);
}

// A matrix stored column after column, `leading` elements apart, as op(matrix) sees it.
struct Matrix {
  const void* data;
  cudaDataType_t type;
  int leading;
  bool is_transposed;

  float At(int64_t row, int64_t column) const {
    return ElementAt(data, type, is_transposed ? row * leading + column : column * leading + row);
  }
  // Whether so many rows and columns of op(matrix) fit its leading dimension.
  bool Fits(int rows, int columns) const { return leading >= std::max(1, is_transposed ? columns : rows); }
};

bool IsType(cudaDataType_t type) { return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; }

}  // namespace

FAKE_EXPORT int cublasCreate_v2(Handle* handle) {
  if (const int refusal = Refusal("cublasCreate_v2")) return refusal;
  if (handles.size() == kMostHandles) return kAllocFailed;
  *handle = new State();
  handles.insert(*handle);
  return kSuccess;
}

FAKE_EXPORT int cublasDestroy_v2(Handle handle) {
  if (handles.erase(handle) == 0) return kNotInitialized;
  delete handle;
  return kSuccess;
}

FAKE_EXPORT int cublasGetVersion_v2(Handle handle, int* version) {
  if (const int refusal = Refusal("cublasGetVersion_v2")) return refusal;
  if (!handles.contains(handle)) return kNotInitialized;
  *version = kVersion;
  return kSuccess;
}

FAKE_EXPORT int cublasSetStream_v2(Handle handle, void* /*stream*/) {
  if (const int refusal = Refusal("cublasSetStream_v2")) return refusal;
  if (!handles.contains(handle)) return kNotInitialized;
  handle->has_stream = true;
  handle->has_workspace = false;  // back to its own, as the real one does
  return kSuccess;
}

FAKE_EXPORT int cublasSetWorkspace_v2(Handle handle, void* workspace, size_t bytes) {
  if (const int refusal = Refusal("cublasSetWorkspace_v2")) return refusal;
  if (!handles.contains(handle)) return kNotInitialized;
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) return kInvalidValue;
  handle->has_workspace = workspace != nullptr && bytes >= kLeastWorkspaceBytes;
  return kSuccess;
}

#ifndef FAKE_WITHOUT_GEMM
FAKE_EXPORT int cublasGemmEx(Handle handle, int operation_a, int operation_b, int m, int n, int k, const void* alpha,
                             const void* a, int type_a, int lda, const void* b, int type_b, int ldb, const void* beta,
                             void* c, int type_c, int ldc, int compute, int algorithm) {
  if (const int refusal = Refusal("cublasGemmEx")) return refusal;
  if (!handles.contains(handle) || !handle->has_stream || !handle->has_workspace) return kNotInitialized;
  const Matrix left = {a, static_cast<cudaDataType_t>(type_a), lda, operation_a == CUBLAS_OP_T};
  const Matrix right = {b, static_cast<cudaDataType_t>(type_b), ldb, operation_b == CUBLAS_OP_T};
  if (m < 0 || n < 0 || k < 0 || ldc < std::max(1, m) || !left.Fits(m, k) || !right.Fits(k, n)) return kInvalidValue;
  if (!IsType(left.type) || left.type != right.type || type_c != CUDA_R_32F || compute != CUBLAS_COMPUTE_32F ||
      algorithm != CUBLAS_GEMM_DEFAULT) {
    return kNotSupported;
  }
  const float factor = *static_cast<const float*>(alpha);
  const float kept = *static_cast<const float*>(beta);
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < m; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += double{left.At(row, i)} * right.At(i, column);
      float& to = static_cast<float*>(c)[column * ldc + row];
      to = static_cast<float>(factor * sum + (kept == 0 ? 0 : kept * to));  // with β = 0 what was there is not read
    }
  }
  return kSuccess;
}
#endif
