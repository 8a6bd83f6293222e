#include "cuda/cublas.h"

#include <dlfcn.h>

namespace vkv::cuda {
namespace {

// Where the library is: on the search path, or in the toolkit that is not on it.
constexpr const char* kUsualPaths[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                       "/usr/local/cuda/lib64/libcublas.so"};

const char* NameOf(int status) {
  switch (status) {
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case 16: return "CUBLAS_STATUS_LICENSE_ERROR";
    default: return "";
  }
}

Status Check(const char* call, int status) {
  if (status == 0) return Ok();
  return {Code::kDriverCallFailed, call, status, NameOf(status), 0, 0};
}

}  // namespace

Status Cublas::Open(const char* library_path, Stream stream, std::unique_ptr<Cublas>& cublas) {
  if (library_path != nullptr) return OpenLibrary(library_path, stream, cublas);
  Status status = Fail(Code::kLibraryUnavailable, "dlopen");
  for (const char* path : kUsualPaths) {
    const Status opened = OpenLibrary(path, stream, cublas);
    if (opened.ok()) return opened;
    // The error of a library that exists tells more than that another one is missing.
    if (opened.code != Code::kLibraryUnavailable) status = opened;
  }
  return status;
}

Status Cublas::OpenLibrary(const char* library_path, Stream stream, std::unique_ptr<Cublas>& cublas) {
  void* const library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Fail(Code::kLibraryUnavailable, "dlopen");
  std::unique_ptr<Cublas> opened(new Cublas());
#define VKV_FIND(name, parameters)                                              \
  opened->name##_ = reinterpret_cast<int(*) parameters>(dlsym(library, #name)); \
  if (opened->name##_ == nullptr) return Fail(Code::kLibraryUnavailable, #name);
  VKV_CUBLAS_ENTRY_POINTS(VKV_FIND)
#undef VKV_FIND
  VKV_RETURN_IF_ERROR(Check("cublasCreate_v2", opened->cublasCreate_v2_(&opened->handle_)));
  int version = 0;
  VKV_RETURN_IF_ERROR(Check("cublasGetVersion_v2", opened->cublasGetVersion_v2_(opened->handle_, &version)));
  opened->version_ = std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100);
  VKV_RETURN_IF_ERROR(
      Check("cublasSetStream_v2", opened->cublasSetStream_v2_(opened->handle_, reinterpret_cast<void*>(stream))));
  cublas = std::move(opened);
  return Ok();
}

// A failure here cannot be reported.
Cublas::~Cublas() {
  if (handle_ != nullptr) (void)cublasDestroy_v2_(handle_);
}

Status Cublas::SetWorkspace(uint64_t address, uint64_t bytes) {
  return Check("cublasSetWorkspace_v2", cublasSetWorkspace_v2_(handle_, reinterpret_cast<void*>(address), bytes));
}

// What its documentation asks for: 32 MiB since Hopper, 4 MiB before.
uint64_t Cublas::WorkspaceBytes(int32_t compute_capability) {
  constexpr int32_t kHopper = 90;
  return uint64_t{compute_capability >= kHopper ? 32u : 4u} << 20;
}

// cuBLAS stores columns one after another, so that our [output, input] is its matrix of `inputs` rows and `outputs`
// columns, and our [row, output] its one of `outputs` rows and `rows` columns: output = weightᵀ · input.
Status Cublas::Multiply(const CublasProduct& product) {
  const float alpha = 1;
  const float beta = product.adds ? 1 : 0;
  const auto& [weight, input, output, rows, inputs, outputs, type, adds] = product;
  const int status =
      cublasGemmEx_(handle_, CUBLAS_OP_T, CUBLAS_OP_N, outputs, rows, inputs, &alpha, weight, type, inputs, input, type,
                    inputs, &beta, output, CUDA_R_32F, outputs, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  return Check("cublasGemmEx", status);
}

}  // namespace vkv::cuda
