// Rows: operations on single rows of activations: RMSNorm, rotary positions, gates, soft caps, embedding; and
// complements of cuBLAS's products: biases, 16-bit floats.
//
// Grid: a block per row, or per piece of kPieceElements, whose threads take its elements in turn. All bound by launch
// and memory.
#include "kernels/cuda/device.h"
#include "kernels/dense/cuda/dense_parameters.h"

namespace vkv::kernels::cuda {

// The sum over a block of kRowThreads threads, in all of them, in one order. Once per kernel: the shared memory is not
// freed.
__device__ inline float BlockSum(float value) {
  constexpr int kWarps = kRowThreads / 32;
  __shared__ float sums[kWarps];
  VKV_UNROLL
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  VKV_UNROLL
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  return sum;
}

// An entry of the list in device memory, or, where there is none, of the launch's own.
__device__ inline int64_t IndexAt(const int32_t* list, const int32_t (&given)[kIndicesPerLaunch], int64_t row) {
  return list != nullptr ? list[row] : given[row];
}

VKV_KERNEL vkv_normalize(const __grid_constant__ NormalizeParameters parameters) {
  const Normalization& command = parameters.command;
  const int64_t row = blockIdx.x;
  const float* const input = command.input + row * command.width;
  float* const output = command.output + row * command.width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < command.width; i += kRowThreads) squares = fmaf(input[i], input[i], squares);
  const float mean = BlockSum(squares) / static_cast<float>(command.width);
  const float factor = 1.0f / sqrtf(mean + command.epsilon);
  for (int64_t i = threadIdx.x; i < command.width; i += kRowThreads) {
    const float value = input[i] * factor * command.weight[i];
    output[i] = command.adds ? output[i] + value : value;
  }
}

VKV_KERNEL vkv_rotate(const __grid_constant__ RotateParameters parameters) {
  const Rotation& command = parameters.command;
  const int64_t row = blockIdx.x;
  const int half = static_cast<int>(command.dim / 2);
  const int pairs = static_cast<int>(command.heads) * half;
  const float* const cosines = command.table + IndexAt(parameters.list, parameters.positions, row) * command.dim;
  const float* const sines = cosines + half;
  float* const heads = command.heads_of_rows + row * command.heads * command.dim;
  for (int pair = threadIdx.x; pair < pairs; pair += kRowThreads) {
    const int i = pair % half;
    float* const low = heads + pair / half * command.dim + i;
    float* const high = low + half;
    const float a = *low;
    const float b = *high;
    *low = a * cosines[i] - b * sines[i];
    *high = b * cosines[i] + a * sines[i];
  }
}

// Calls `call(i)` for this thread's elements of the block's piece.
template <typename Call>
__device__ inline void ForPiece(int64_t count, Call call) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPieceElements;
  VKV_UNROLL
  for (int at = 0; at < kPieceElements; at += kRowThreads) {
    const int64_t i = begin + at + threadIdx.x;
    if (i < count) call(i);
  }
}

VKV_KERNEL vkv_gate(const __grid_constant__ GateParameters parameters) {
  const Gating& command = parameters.command;
  ForPiece(command.count, [&](int64_t i) {
    const float x = command.gate[i];
    const float by = command.activation == Activation::kSilu ? x : x * fmaf(x * x, kGeluCubic, kGeluLinear);
    command.output[i] = x / (1.0f + expf(-by)) * command.up[i];  // far below zero expf is infinite, the quotient −0
  });
}

VKV_KERNEL vkv_cap(const __grid_constant__ CapParameters parameters) {
  const Capping& command = parameters.command;
  ForPiece(command.count, [&](int64_t i) { command.values[i] = command.cap * tanhf(command.values[i] / command.cap); });
}

VKV_KERNEL vkv_narrow(const __grid_constant__ NarrowParameters parameters) {
  const auto to = reinterpret_cast<uint64_t>(parameters.to);
  ForPiece(parameters.count, [&](int64_t i) { StoreElement(to, parameters.dtype, i, parameters.from[i]); });
}

VKV_KERNEL vkv_gather(const __grid_constant__ GatherParameters parameters) {
  const Gathering& command = parameters.command;
  const int64_t row = blockIdx.x;
  const int64_t first = IndexAt(parameters.list, parameters.tokens, row) * command.width;
  const auto table = reinterpret_cast<uint64_t>(command.table);
  for (int64_t i = threadIdx.x; i < command.width; i += kRowThreads) {
    command.output[row * command.width + i] = LoadElement(table, command.dtype, first + i) * command.factor;
  }
}

VKV_KERNEL vkv_bias(const __grid_constant__ BiasParameters parameters) {
  float* const row = parameters.output + static_cast<int64_t>(blockIdx.x) * parameters.outputs;
  for (int64_t o = threadIdx.x; o < parameters.outputs; o += kRowThreads) {
    row[o] = parameters.bias[o] + (parameters.adds ? row[o] : 0.0f);
  }
}

}  // namespace vkv::kernels::cuda
