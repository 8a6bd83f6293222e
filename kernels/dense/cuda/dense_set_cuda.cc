#include "kernels/dense/cuda/dense_set_cuda.h"

#include <algorithm>
#include <limits>

#include "kernels/dense/cuda/dense_launches.h"

namespace vkv::kernels {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int>::max();
constexpr int kBfloat16Capability = 80;  // from here on cuBLAS multiplies it
// Up to here our own kernel, which reads each weight once and narrows nothing, took 0.80 to 0.95 of cuBLAS's time on an
// H100; of 8 rows 1.8 times as long.
constexpr int64_t kFewRows = 4;

vkv::cuda::cudaDataType_t TypeOf(Dtype dtype) {
  return dtype == Dtype::kFloat32   ? vkv::cuda::CUDA_R_32F
         : dtype == Dtype::kFloat16 ? vkv::cuda::CUDA_R_16F
                                    : vkv::cuda::CUDA_R_16BF;
}

}  // namespace

Status CudaDense::Open(vkv::cuda::DriverCuda& driver, const std::string& module, Stream stream,
                       const CublasChoice& choice, std::unique_ptr<DenseSet>& set) {
  std::unique_ptr<CudaDense> opened(new CudaDense());
  VKV_RETURN_IF_ERROR(cuda::KernelLauncher::Open(driver, module, stream, opened->launcher_));
  VKV_RETURN_IF_ERROR(opened->OpenCublas(choice));
  opened->name_ = opened->cublas_ ? "cublas " + opened->cublas_->version() : opened->launcher_->architecture();
  set = std::move(opened);
  return Ok();
}

Status CudaDense::OpenCublas(const CublasChoice& choice) {
  if (choice.kind == CublasChoice::Kind::kNone) return Ok();
  const bool is_usual = choice.kind == CublasChoice::Kind::kUsual;
  const Status status = vkv::cuda::Cublas::Open(is_usual ? nullptr : choice.path.c_str(), launcher_->stream(), cublas_);
  if (!status.ok()) return is_usual ? Ok() : status;  // where it is absent, or does not work here, our own kernels do
  vkv::cuda::DriverCuda& driver = launcher_->driver();
  VKV_RETURN_IF_ERROR(DeviceMemory::Open(driver, choice.workspace_bytes, workspace_));
  const uint64_t bytes = vkv::cuda::Cublas::WorkspaceBytes(driver.info().compute_capability);
  VKV_RETURN_IF_ERROR(DeviceMemory::Open(driver, bytes, cublas_workspace_));
  return cublas_->SetWorkspace(cublas_workspace_->address(), bytes);
}

CudaDense::~CudaDense() {
  // After a loss, and in a fork, no call may reach the device, not even through cuBLAS.
  if (!cublas_) return;
  DriverScope scope(launcher_->driver());
  if (!scope.status().ok()) cublas_->Forget();
  cublas_.reset();
}

Status CudaDense::Multiply(const ProductInput& input, std::span<const Product> products) {
  const int64_t at_once =
      cublas_ ? static_cast<int64_t>(workspace_->bytes()) / (2 * std::max<int64_t>(input.inputs, 1)) : 0;
  for (int64_t row = 0; row < input.rows;) {
    const int64_t rows = at_once == 0 ? input.rows : std::min(input.rows - row, at_once);
    const ProductInput part = {input.input + row * input.inputs, rows, input.inputs};
    Dtype narrowed = Dtype::kFloat32;
    for (Product product : products) {
      product.output += row * product.outputs;
      VKV_RETURN_IF_ERROR(at_once != 0 && UsesCublas(part, product)
                              ? MultiplyByCublas(part, product, narrowed)
                              : cuda::LaunchMultiply(part, product, launcher_->submit()));
    }
    row += rows;
  }
  return Ok();
}

bool CudaDense::UsesCublas(const ProductInput& input, const Product& product) const {
  if (input.rows <= kFewRows) return false;
  if (product.dtype == Dtype::kBfloat16 && launcher_->driver().info().compute_capability < kBfloat16Capability)
    return false;
  return std::max({input.rows, input.inputs, product.outputs}) <= kMostInt && input.inputs >= 1 && product.outputs >= 1;
}

Status CudaDense::MultiplyByCublas(const ProductInput& input, const Product& product, Dtype& narrowed) {
  const void* rows = input.input;
  if (product.dtype != Dtype::kFloat32) {
    void* const workspace = reinterpret_cast<void*>(workspace_->address());
    if (narrowed != product.dtype) {
      VKV_RETURN_IF_ERROR(
          cuda::LaunchNarrow({input.input, workspace, input.rows * input.inputs, product.dtype}, launcher_->submit()));
      narrowed = product.dtype;
    }
    rows = workspace;
  }
  if (product.bias != nullptr) {
    VKV_RETURN_IF_ERROR(cuda::LaunchBias({product.bias, product.output, input.rows, product.outputs, product.adds},
                                         launcher_->submit()));
  }
  const Status status = cublas_->Multiply({product.weight, rows, product.output, static_cast<int>(input.rows),
                                           static_cast<int>(input.inputs), static_cast<int>(product.outputs),
                                           TypeOf(product.dtype), product.adds || product.bias != nullptr});
  launcher_->driver().NoteQueued(launcher_->stream());
  return status;
}

Status CudaDense::Normalize(const Normalization& command, int64_t rows) {
  return cuda::LaunchNormalize(command, rows, launcher_->submit());
}

Status CudaDense::Rotate(const Rotation& command, int64_t rows) {
  return cuda::LaunchRotate(command, rows, launcher_->submit());
}

Status CudaDense::Gate(const Gating& command) { return cuda::LaunchGate(command, launcher_->submit()); }

Status CudaDense::Cap(const Capping& command) { return cuda::LaunchCap(command, launcher_->submit()); }

Status CudaDense::Gather(const Gathering& command, std::span<const int32_t> tokens) {
  return cuda::LaunchGather(command, tokens, launcher_->submit());
}

}  // namespace vkv::kernels
