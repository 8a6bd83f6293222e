#include "kernels/dense/dense_reference.h"

#include <cmath>
#include <numbers>

#include "kernels/float16.h"

namespace vkv::kernels::reference {
namespace {

float ElementAt(const void* from, Dtype dtype, int64_t index) {
  switch (dtype) {
    case Dtype::kFloat32: return static_cast<const float*>(from)[index];
    case Dtype::kFloat16: return ToFloat(static_cast<const Half*>(from)[index]);
    case Dtype::kBfloat16: return ToFloat(static_cast<const Bfloat*>(from)[index]);
  }
  return 0;
}

}  // namespace

void Multiply(const ProductInput& input, const Product& product) {
  for (int64_t row = 0; row < input.rows; ++row) {
    for (int64_t o = 0; o < product.outputs; ++o) {
      double sum = product.bias == nullptr ? 0 : product.bias[o];
      for (int64_t i = 0; i < input.inputs; ++i) {
        sum += double{input.input[row * input.inputs + i]} *
               ElementAt(product.weight, product.dtype, o * input.inputs + i);
      }
      float& output = product.output[row * product.outputs + o];
      output = static_cast<float>(product.adds ? output + sum : sum);
    }
  }
}

void Normalize(const Normalization& command, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* const input = command.input + row * command.width;
    float* const output = command.output + row * command.width;
    double squares = 0;
    for (int64_t i = 0; i < command.width; ++i) squares += double{input[i]} * input[i];
    const double root = std::sqrt(squares / static_cast<double>(command.width) + double{command.epsilon});
    for (int64_t i = 0; i < command.width; ++i) {
      const double value = input[i] / root * command.weight[i];
      output[i] = static_cast<float>(command.adds ? output[i] + value : value);
    }
  }
}

void Rotate(const Rotation& command, int64_t rows) {
  const int64_t half = command.dim / 2;
  for (int64_t row = 0; row < rows; ++row) {
    const float* const cosines = command.table + command.positions[row] * command.dim;
    const float* const sines = cosines + half;
    for (int64_t head = 0; head < command.heads; ++head) {
      float* const low = command.heads_of_rows + (row * command.heads + head) * command.dim;
      float* const high = low + half;
      for (int64_t i = 0; i < half; ++i) {
        const double a = low[i];
        const double b = high[i];
        low[i] = static_cast<float>(a * cosines[i] - b * sines[i]);
        high[i] = static_cast<float>(b * cosines[i] + a * sines[i]);
      }
    }
  }
}

void Gate(const Gating& command) {
  for (int64_t i = 0; i < command.count; ++i) {
    const double x = command.gate[i];
    const double value = command.activation == Activation::kSilu
                             ? x / (1 + std::exp(-x))
                             : x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    command.output[i] = static_cast<float>(value * command.up[i]);
  }
}

void Cap(const Capping& command) {
  for (int64_t i = 0; i < command.count; ++i) {
    command.values[i] = static_cast<float>(command.cap * std::tanh(command.values[i] / double{command.cap}));
  }
}

void Gather(const Gathering& command, std::span<const int32_t> tokens) {
  float* output = command.output;
  for (const int32_t token : tokens) {
    for (int64_t i = 0; i < command.width; ++i)
      *output++ = ElementAt(command.table, command.dtype, token * command.width + i) * command.factor;
  }
}

void SpreadBias(const float* bias, float* output, int64_t rows, int64_t outputs, bool adds) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t o = 0; o < outputs; ++o) output[row * outputs + o] = bias[o] + (adds ? output[row * outputs + o] : 0);
  }
}

void Narrow(const float* from, void* to, Dtype dtype, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == Dtype::kFloat16)
      static_cast<Half*>(to)[i] = ToHalf(from[i]);
    else
      static_cast<Bfloat*>(to)[i] = ToBfloat(from[i]);
  }
}

}  // namespace vkv::kernels::reference
