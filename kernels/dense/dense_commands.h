// Dense commands: the arguments of the dense kernels, as plain data: matrix products, RMSNorm, rotary positions, gates,
// soft caps, embedding.
//
// Activations are float, [row, width], contiguous; weights have the format of a model's file, [output, input], in any
// Dtype. Pointers are addresses on the machine that computes, but for tokens and positions, which are plain memory,
// read during the call. Buffers do not overlap unless a comment says so. This header compiles as CUDA C++ too.
#ifndef VKV_KERNELS_DENSE_DENSE_COMMANDS_H_
#define VKV_KERNELS_DENSE_DENSE_COMMANDS_H_

#include "kernels/commands.h"

namespace vkv::kernels {

// output[row, o] = Σ input[row, i] · weight[o, i], + bias[o] if there is one, + the old output[row, o] if it `adds`.
struct Product {
  const void* weight = nullptr;  // [output, input]
  const float* bias = nullptr;   // [output], or null
  float* output = nullptr;       // [row, output]
  int64_t outputs = 0;
  Dtype dtype = Dtype::kFloat32;
  bool adds = false;
};

// The input of products.
struct ProductInput {
  const float* input = nullptr;  // [row, input]
  int64_t rows = 0;
  int64_t inputs = 0;
};

// output[row] = input[row] / √(mean of its squares + epsilon) · weight, + the old output[row] if it `adds`
struct Normalization {
  const float* input = nullptr;
  const float* weight = nullptr;  // [width]
  float* output = nullptr;        // may be input
  int64_t width = 0;
  float epsilon = 0;
  bool adds = false;
};

// Rotates heads [row, head, dim] to their positions: the pair (i, i + dim / 2) by an angle whose cosine and sine are
// table[position, 0, i] and table[position, 1, i], i < dim / 2.
struct Rotation {
  float* heads_of_rows = nullptr;
  const int32_t* positions = nullptr;  // [row], plain memory, or device memory that is read when the kernel runs
  const float* table = nullptr;        // [position, 2, dim / 2]
  int64_t heads = 0;
  int64_t dim = 0;
  bool are_on_device = false;  // the positions
};

// What a gate makes of its input: x · sigmoid(x), or GELU by its tanh formula, x · sigmoid(GeluArgument(x)). The
// numbers are lib/kernels/dense/dense-arguments.ts's too.
enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// 2 · √(2 / π) · (x + 0.044715 · x³) is x · (kGeluLinear + kGeluCubic · x²).
inline constexpr float kGeluLinear = 1.59576912160573071f;
inline constexpr float kGeluCubic = 0.0713548162726f;

// output[i] = activation(gate[i]) · up[i]
struct Gating {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* output = nullptr;  // may be either
  int64_t count = 0;
  Activation activation = Activation::kSilu;
};

// values[i] = cap · tanh(values[i] / cap); what is no number stays so.
struct Capping {
  float* values = nullptr;
  int64_t count = 0;
  float cap = 1;
};

// output[row] = table[tokens[row]] · factor, as floats.
struct Gathering {
  const void* table = nullptr;  // [token, width]
  float* output = nullptr;      // [row, width]
  int64_t width = 0;
  Dtype dtype = Dtype::kFloat32;
  bool are_on_device = false;  // the tokens beside the command: device memory that is read when the kernel runs
  float factor = 1;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_DENSE_DENSE_COMMANDS_H_
