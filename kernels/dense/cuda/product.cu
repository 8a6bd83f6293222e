// Product: output[row, o] = Σ input[row, i] · weight[o, i], as dot products: both operands are contiguous along their
// inputs.
//
// Grid: see dense_parameters.h. A warp has a tile of Rows × Outputs sums in registers. Its lanes take kLaneElements
// neighbours of the inputs in turn, so that a warp reads whole lines, and their sums are added up at the end. That
// order is the same for every tile and alignment: to the bit, a row's result does not depend on the other rows. One
// row is bound by memory; many are bound by the first-level cache: the plain version, without tensor
// cores.
#include "kernels/cuda/device.h"
#include "kernels/dense/cuda/dense_parameters.h"

namespace vkv::kernels::cuda {

constexpr int kLaneElements = 8;
constexpr int kWarpLanes = 32;
constexpr int kStep = kWarpLanes * kLaneElements;

// Elements [at, at + kLaneElements) of a row as floats; zeros beyond its end.
template <typename T, bool IsWhole>
__device__ inline void LoadLane(float (&to)[kLaneElements], const T* row, int64_t at, int64_t length) {
  if constexpr (IsWhole) {
    constexpr int kPack = 16 / sizeof(T);
    VKV_UNROLL
    for (int p = 0; p < kLaneElements / kPack; ++p) {
      const auto pack = LoadPack<T, kPack>(reinterpret_cast<uint64_t>(row + at + p * kPack));
      VKV_UNROLL
      for (int e = 0; e < kPack; ++e) to[p * kPack + e] = AsFloat(pack.element[e]);
    }
  } else {
    VKV_UNROLL
    for (int e = 0; e < kLaneElements; ++e) to[e] = at + e < length ? AsFloat(row[at + e]) : 0.0f;
  }
}

template <typename T, int Rows, int Outputs>
struct ProductTile {
  const float* rows[Rows];
  const T* weights[Outputs];
  float sums[Rows][Outputs];

  // Rows and outputs beyond the end are the last ones again, and not written.
  __device__ ProductTile(const MultiplyParameters& parameters, int64_t first_row, int64_t first_output) {
    const auto& [input, row_count, inputs] = parameters.input;
    VKV_UNROLL
    for (int r = 0; r < Rows; ++r) {
      rows[r] = input + (first_row + r < row_count ? first_row + r : row_count - 1) * inputs;
    }
    const auto* const weight = static_cast<const T*>(parameters.product.weight);
    const int64_t outputs = parameters.product.outputs;
    VKV_UNROLL
    for (int o = 0; o < Outputs; ++o) {
      weights[o] = weight + (first_output + o < outputs ? first_output + o : outputs - 1) * inputs;
    }
    VKV_UNROLL
    for (int r = 0; r < Rows; ++r) {
      VKV_UNROLL
      for (int o = 0; o < Outputs; ++o) sums[r][o] = 0;
    }
  }

  template <bool IsWhole>
  __device__ void AddStep(int64_t at, int64_t inputs) {
    float weight[Outputs][kLaneElements];
    VKV_UNROLL
    for (int o = 0; o < Outputs; ++o) LoadLane<T, IsWhole>(weight[o], weights[o], at, inputs);
    VKV_UNROLL
    for (int r = 0; r < Rows; ++r) {
      float row[kLaneElements];
      LoadLane<float, IsWhole>(row, rows[r], at, inputs);
      VKV_UNROLL
      for (int o = 0; o < Outputs; ++o) {
        VKV_UNROLL
        for (int e = 0; e < kLaneElements; ++e) sums[r][o] = fmaf(row[e], weight[o][e], sums[r][o]);
      }
    }
  }

  // The sum of all lanes, in all lanes.
  __device__ float SumOf(int r, int o) const {
    float sum = sums[r][o];
    VKV_UNROLL
    for (int other = kWarpLanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    return sum;
  }
};

template <typename T, int Rows>
__device__ inline void Multiply(const MultiplyParameters& parameters) {
  constexpr int kOutputs = kMultiplyOutputs<Rows>;
  const Product& product = parameters.product;
  const int64_t inputs = parameters.input.inputs;
  const int64_t row_blocks = (parameters.input.rows + Rows - 1) / Rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t first_row = blockIdx.x % row_blocks * Rows;
  const int64_t first_output = (blockIdx.x / row_blocks * kMultiplyWarps + warp) * kOutputs;
  if (first_output >= product.outputs) return;  // the whole warp
  ProductTile<T, Rows, kOutputs> tile(parameters, first_row, first_output);
  int64_t at = lane * kLaneElements;
  if (parameters.is_aligned) {
    for (; at + kLaneElements <= inputs; at += kStep) tile.template AddStep<true>(at, inputs);
  }
  VKV_KEEP_LOOP
  for (; at < inputs; at += kStep) tile.template AddStep<false>(at, inputs);
  VKV_UNROLL
  for (int r = 0; r < Rows; ++r) {
    VKV_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      float sum = tile.SumOf(r, o);
      const int64_t row = first_row + r;
      const int64_t output = first_output + o;
      if (lane != r * kOutputs + o || row >= parameters.input.rows || output >= product.outputs) continue;
      float* const to = product.output + row * product.outputs + output;
      if (product.bias != nullptr) sum += product.bias[output];
      *to = product.adds ? *to + sum : sum;
    }
  }
}

#define VKV_MULTIPLY(name, type, rows)                                                              \
  VKV_KERNEL vkv_multiply_##name##_r##rows(const __grid_constant__ MultiplyParameters parameters) { \
    Multiply<type, rows>(parameters);                                                               \
  }
#define VKV_MULTIPLY_ROWS(name, type) \
  VKV_MULTIPLY(name, type, 1)         \
  VKV_MULTIPLY(name, type, 2)         \
  VKV_MULTIPLY(name, type, 4)         \
  VKV_MULTIPLY(name, type, 8)
VKV_MULTIPLY_ROWS(f32, float)
VKV_MULTIPLY_ROWS(f16, HalfBits)
VKV_MULTIPLY_ROWS(bf16, BfloatBits)

}  // namespace vkv::kernels::cuda
