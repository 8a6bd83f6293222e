#include "kernels/dense/cpu/int8.h"

#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vkv::kernels {
namespace {

constexpr int kGroup = 4;
constexpr int kGroups = kBlockElements / kGroup;

// To nearest, ties to even.
inline int32_t Nearest(float value) {
#if defined(__x86_64__)
  return _mm_cvtss_si32(_mm_set_ss(value));
#else
  return static_cast<int32_t>(__builtin_lrintf(value));
#endif
}

// The largest magnitude of a block; NaN where one is no finite number.
float LargestOf(const float* from) {
  float largest = 0;
  bool is_finite = true;
  for (int i = 0; i < kBlockElements; ++i) {
    const float magnitude = std::fabs(from[i]);
    is_finite = is_finite && magnitude <= 0x1.fffffep127f;
    largest = magnitude > largest ? magnitude : largest;
  }
  return is_finite ? largest : __builtin_nanf("");
}

}  // namespace

void QuantizeRow(const float* row, int64_t inputs, int8_t* values, float* scales) {
  for (int64_t at = 0; at < inputs; at += kBlockElements) {
    const float largest = LargestOf(row + at);
    const bool is_usable = largest >= kLeastLargest;  // neither NaN, nor so small that 127 / largest overflows
    const float factor = is_usable ? kLargestInteger / largest : 0;
    *scales++ = is_usable ? largest / kLargestInteger : std::isnan(largest) ? largest : 0;
    for (int i = 0; i < kBlockElements; ++i)
      values[at + i] = is_usable ? static_cast<int8_t>(Nearest(row[at + i] * factor)) : int8_t{0};
  }
}

bool QuantizeBlocks(const float* from, int64_t count, Int8Block* to) {
  for (int64_t at = 0; at < count; at += kBlockElements, ++to) {
    const float scale = LargestOf(from + at) / kLargestInteger;
    if (!(scale <= 65504)) return false;
    to->scale = ToHalf(scale).bits;
    const float factor = scale >= 0x1p-100f ? 1 / scale : 0;
    for (int i = 0; i < kBlockElements; ++i) to->values[i] = static_cast<int8_t>(std::round(from[at + i] * factor));
  }
  return true;
}

void ToFloats(float* to, const Int8Block* from, int64_t count) {
  for (int64_t at = 0; at < count; at += kBlockElements, ++from) {
    const float scale = ToFloat(Half{from->scale});
    for (int i = 0; i < kBlockElements; ++i) to[at + i] = scale * from->values[i];
  }
}

namespace {

void Multiply(const Int8Part& part, float* /*scratch*/) {
  const Product& product = *part.product;
  const Int8Input& input = part.input;
  const int64_t blocks = input.inputs / kBlockElements;
  for (int64_t o = part.from; o < part.to; ++o) {
    const Int8Block* const weights = static_cast<const Int8Block*>(product.weight) + o * blocks;
    for (int64_t row = 0; row < input.rows; ++row) {
      const int8_t* const values = input.values + row * input.inputs;
      const float* const scales = input.scales + row * blocks;
      float lanes[2 * kGroups] = {};
      for (int64_t block = 0; block < blocks + blocks % 2; ++block) {
        const bool is_there = block < blocks;
        const float scale = is_there ? ToFloat(Half{weights[block].scale}) * scales[block] : 0;
        for (int group = 0; group < kGroups; ++group) {
          int32_t sum = 0;
          for (int i = kGroup * group; is_there && i < kGroup * (group + 1); ++i)
            sum += weights[block].values[i] * values[block * kBlockElements + i];
          float& lane = lanes[block % 2 * kGroups + group];
          lane = __builtin_fmaf(static_cast<float>(sum), scale, lane);
        }
      }
      for (int half = kGroups; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      FinishOutput(product, row, o, lanes[0]);
    }
  }
}

}  // namespace

const Int8Kernels* PortableInt8() {
  static constexpr Int8Kernels kKernels = {QuantizeRow, Multiply};
  return &kKernels;
}

}  // namespace vkv::kernels
