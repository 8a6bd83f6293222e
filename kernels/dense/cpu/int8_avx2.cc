// Int8 products for AVX2: 32 pairs of 8 bits are multiplied at a time. One of the factors must be without a sign there,
// so a weight's sign goes to the activation; 16-bit sums of two products do not overflow, since activations are −127 …
// 127.
#include "kernels/cpu/target.h"
#include "kernels/dense/cpu/int8.h"

#if defined(__x86_64__)
#include <immintrin.h>

VKV_TARGET_BEGIN("avx2,fma,f16c")

namespace vkv::kernels {
namespace {

// Lanes 0 … 7 of even blocks, and 8 … 15 of odd ones.
struct Lanes {
  __m256 half[2];
};

inline __m256i LoadValues(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// The 8 sums of a block, as floats.
inline __m256 SumsOf(__m256i weights, __m256i magnitudes, __m256i values) {
  const __m256i twos = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(values, weights));
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
}

inline float SumOf(const Lanes& lanes) {
  const __m256 eight = _mm256_add_ps(lanes.half[0], lanes.half[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Adds one block of `Rows` rows and `Outputs` outputs to a half of their lanes.
template <int Rows, int Outputs>
inline void AddBlock(const int8_t* const* values, const float* const* scales, const Int8Block* const* weights,
                     int64_t block, int half, Lanes (*lanes)[Outputs]) {
  for (int o = 0; o < Outputs; ++o) {
    const Int8Block* const from = weights[o] + block;
    const __m256i weight = LoadValues(from->values);
    const __m256i magnitude = _mm256_abs_epi8(weight);
    __builtin_prefetch(reinterpret_cast<const uint8_t*>(from) + 1024);
    const float scale = _cvtsh_ss(from->scale);
    for (int r = 0; r < Rows; ++r) {
      const __m256 sums = SumsOf(weight, magnitude, LoadValues(values[r] + block * kBlockElements));
      __m256& lane = lanes[r][o].half[half];
      lane = _mm256_fmadd_ps(sums, _mm256_set1_ps(scale * scales[r][block]), lane);
    }
  }
}

// `Rows` rows from `row` on, and `Outputs` outputs from `first` on.
template <int Rows, int Outputs>
inline void MultiplyTile(const Int8Part& part, int64_t row, int64_t first) {
  const Int8Input& input = part.input;
  const int64_t blocks = input.inputs / kBlockElements;
  const int8_t* values[Rows];
  const float* scales[Rows];
  for (int r = 0; r < Rows; ++r) {
    values[r] = input.values + (row + r) * input.inputs;
    scales[r] = input.scales + (row + r) * blocks;
  }
  const Int8Block* weights[Outputs];
  for (int o = 0; o < Outputs; ++o)
    weights[o] = static_cast<const Int8Block*>(part.product->weight) + (first + o) * blocks;
  Lanes lanes[Rows][Outputs];
  for (int r = 0; r < Rows; ++r) {
    for (int o = 0; o < Outputs; ++o) lanes[r][o] = {{_mm256_setzero_ps(), _mm256_setzero_ps()}};
  }
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2) {
    AddBlock<Rows, Outputs>(values, scales, weights, block, 0, lanes);
    AddBlock<Rows, Outputs>(values, scales, weights, block + 1, 1, lanes);
  }
  if (block < blocks) AddBlock<Rows, Outputs>(values, scales, weights, block, 0, lanes);
  for (int r = 0; r < Rows; ++r) {
    for (int o = 0; o < Outputs; ++o) FinishOutput(*part.product, row + r, first + o, SumOf(lanes[r][o]));
  }
}

template <int Outputs>
inline void MultiplyOutputs(const Int8Part& part, int64_t first) {
  int64_t row = 0;
  for (; row + 2 <= part.input.rows; row += 2) MultiplyTile<2, Outputs>(part, row, first);
  if (row < part.input.rows) MultiplyTile<1, Outputs>(part, row, first);
}

void Multiply(const Int8Part& part, float* /*scratch*/) {
  int64_t first = part.from;
  for (; first + 2 <= part.to; first += 2) MultiplyOutputs<2>(part, first);
  if (first < part.to) MultiplyOutputs<1>(part, first);
}

}  // namespace

}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const Int8Kernels* Avx2Int8() {
  static constexpr Int8Kernels kKernels = {QuantizeRow, Multiply};
  return &kKernels;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::Int8Kernels* vkv::kernels::Avx2Int8() { return PortableInt8(); }
#endif
