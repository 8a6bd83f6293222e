// Int8 products for AVX2: 32 pairs of 8 bits are multiplied at a time. One of the factors must be without a sign there,
// so a weight's sign goes to the activation; 16-bit sums of two products do not overflow, since activations are −127 …
// 127.
//
// A few rows read the weights as they lie in memory. More rows lay 8 outputs side by side first: then no lane is added
// to another within a vector, and a block's scales are multiplied once for 8 outputs and 4 sums. A thread of an EPYC
// 7003 (Zen 3) multiplies 1.2 times as fast so with 5 rows and 1.4 times with 66, at 37 billion products a second.
#include "kernels/cpu/target.h"
#include "kernels/dense/cpu/int8.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

VKV_TARGET_BEGIN("avx2,fma,f16c")

namespace vkv::kernels {
namespace {

constexpr int kOutputs = 8;     // side by side
constexpr int kGroups = 8;      // of 4 neighbours, in a block
constexpr int kPassGroups = 4;  // whose lanes are in registers
constexpr int kPasses = 2 * kGroups / kPassGroups;
constexpr int kTileRows = 3;
constexpr int kFewRows = 4;  // which take the weights as they lie
// Blocks that are fetched before they are used: outputs of another tile.
constexpr int64_t kAhead = 8192 / int64_t{sizeof(Int8Block)};
// Of rows that meet all outputs of a part before the next ones do: they stay in the second-level cache.
constexpr int64_t kStretchBytes = 128 << 10;

// Lanes 0 … 7 of even blocks, and 8 … 15 of odd ones.
struct Lanes {
  __m256 half[2];
};

// Where the blocks of some rows begin.
template <int Rows>
struct RowBlocks {
  const int8_t* values[Rows];
  const float* scales[Rows];
};

template <int Rows>
inline RowBlocks<Rows> RowsFrom(const Int8Input& input, int64_t row) {
  RowBlocks<Rows> rows;
  for (int r = 0; r < Rows; ++r) {
    rows.values[r] = input.values + (row + r) * input.inputs;
    rows.scales[r] = input.scales + (row + r) * (input.inputs / kBlockElements);
  }
  return rows;
}

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
    __builtin_prefetch(from + kAhead);
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
  const int64_t blocks = part.input.inputs / kBlockElements;
  const auto [values, scales] = RowsFrom<Rows>(part.input, row);
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

// Few rows take the weights as they lie.
template <int Outputs>
inline void MultiplyOutputs(const Int8Part& part, int64_t first) {
  int64_t row = 0;
  for (; row + 2 <= part.input.rows; row += 2) MultiplyTile<2, Outputs>(part, row, first);
  if (row < part.input.rows) MultiplyTile<1, Outputs>(part, row, first);
}

inline void MultiplyFew(const Int8Part& part) {
  int64_t first = part.from;
  for (; first + 2 <= part.to; first += 2) MultiplyOutputs<2>(part, first);
  if (first < part.to) MultiplyOutputs<1>(part, first);
}

// One block of 8 outputs side by side: of each group, the 4 weights of output 0, of output 1, …
struct PanelBlock {
  __m256i values[kGroups];
  __m256 scales;
};
static_assert(sizeof(PanelBlock) <= sizeof(float) * Int8ScratchFloats(kBlockElements) / 2);

// The transpose of 8 vectors of 8 numbers.
inline void Transpose(const __m256i* from, __m256i* to) {
  __m256i twos[8];
  for (int i = 0; i < 8; i += 2) {
    twos[i] = _mm256_unpacklo_epi32(from[i], from[i + 1]);
    twos[i + 1] = _mm256_unpackhi_epi32(from[i], from[i + 1]);
  }
  __m256i fours[8];
  for (int i = 0; i < 8; i += 4) {
    for (int k = 0; k < 2; ++k) {
      fours[i + 2 * k] = _mm256_unpacklo_epi64(twos[i + k], twos[i + 2 + k]);
      fours[i + 2 * k + 1] = _mm256_unpackhi_epi64(twos[i + k], twos[i + 2 + k]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    to[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
    to[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
  }
}

// Outputs [first, first + 8), or the last one again where there are fewer.
inline void MakePanel(const Int8Part& part, int64_t first, PanelBlock* panel) {
  const int64_t blocks = part.input.inputs / kBlockElements;
  const Int8Block* weights[kOutputs];
  for (int o = 0; o < kOutputs; ++o) {
    const int64_t output = first + o < part.to ? first + o : part.to - 1;
    weights[o] = static_cast<const Int8Block*>(part.product->weight) + output * blocks;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    __m256i values[kOutputs];
    alignas(16) uint16_t scales[kOutputs];
    for (int o = 0; o < kOutputs; ++o) {
      values[o] = LoadValues(weights[o][block].values);
      scales[o] = weights[o][block].scale;
    }
    Transpose(values, panel[block].values);
    panel[block].scales = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(scales)));
  }
}

// Writes sums of outputs [first, first + count) of a row.
inline void FinishOutputs(const Product& product, int64_t row, int64_t first, int64_t count, __m256 sums) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count < 8 ? count : 8)), lanes);
  float* const to = product.output + row * product.outputs + first;
  if (product.bias != nullptr) sums = _mm256_add_ps(sums, _mm256_maskload_ps(product.bias + first, kept));
  if (product.adds) sums = _mm256_add_ps(_mm256_maskload_ps(to, kept), sums);
  _mm256_maskstore_ps(to, kept, sums);
}

// Bytes that are fetched while others are used.
struct Ahead {
  const uint8_t* from = nullptr;
  int64_t bytes_per_step = 0;
};

// `Rows` rows and the 8 outputs of a panel. A pass over it has the lanes of half the groups of every second block in
// registers.
template <int Rows>
inline void MultiplyPanel(const Int8Part& part, const PanelBlock* panel, int64_t row, int64_t first, Ahead& ahead) {
  const int64_t blocks = part.input.inputs / kBlockElements;
  const auto [values, scales] = RowsFrom<Rows>(part.input, row);
  __m256 held[2][Rows][kGroups];  // lanes 0 … 7, and 8 … 15
  for (int pass = 0; pass < kPasses; ++pass) {
    const int half = pass % 2;
    const int from_group = pass / 2 * kPassGroups;
    __m256 lanes[Rows][kPassGroups];
    for (int r = 0; r < Rows; ++r) {
      for (int group = 0; group < kPassGroups; ++group) lanes[r][group] = _mm256_setzero_ps();
    }
    for (int64_t block = half; block < blocks; block += 2) {
      for (int64_t at = 0; at < ahead.bytes_per_step; at += 64) __builtin_prefetch(ahead.from + at, 0, 2);
      ahead.from += ahead.bytes_per_step;
      const PanelBlock& from = panel[block];
      __m256 by[Rows];
      for (int r = 0; r < Rows; ++r) by[r] = _mm256_mul_ps(from.scales, _mm256_broadcast_ss(scales[r] + block));
#pragma GCC unroll 4
      for (int group = 0; group < kPassGroups; ++group) {
        const __m256i weight = from.values[from_group + group];
        const __m256i magnitude = _mm256_abs_epi8(weight);
        for (int r = 0; r < Rows; ++r) {
          int32_t four;
          __builtin_memcpy(&four, values[r] + block * kBlockElements + 4 * (from_group + group), sizeof(four));
          lanes[r][group] = _mm256_fmadd_ps(SumsOf(weight, magnitude, _mm256_set1_epi32(four)), by[r], lanes[r][group]);
        }
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int group = 0; group < kPassGroups; ++group) held[half][r][from_group + group] = lanes[r][group];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    __m256* const lanes = held[0][r];
    for (int lane = 0; lane < kGroups; ++lane) lanes[lane] = _mm256_add_ps(lanes[lane], held[1][r][lane]);
    for (int half = kGroups / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] = _mm256_add_ps(lanes[lane], lanes[lane + half]);
    }
    FinishOutputs(*part.product, row + r, first, part.to - first, lanes[0]);
  }
}

// Rows [from, to).
inline void MultiplyStretch(const Int8Part& part, int64_t from, int64_t to, PanelBlock* panel) {
  const int64_t blocks = part.input.inputs / kBlockElements;
  const int64_t steps = (to - from + kTileRows - 1) / kTileRows * kPasses / 2;  // for a block
  for (int64_t first = part.from; first < part.to; first += kOutputs) {
    MakePanel(part, first, panel);
    const auto* const next = static_cast<const Int8Block*>(part.product->weight) + (first + kOutputs) * blocks;
    Ahead ahead = {reinterpret_cast<const uint8_t*>(next), kOutputs * int64_t{sizeof(Int8Block)} / steps};
    int64_t row = from;
    for (; row + kTileRows <= to; row += kTileRows) MultiplyPanel<kTileRows>(part, panel, row, first, ahead);
    if (to - row == 2) MultiplyPanel<2>(part, panel, row, first, ahead);
    if (to - row == 1) MultiplyPanel<1>(part, panel, row, first, ahead);
  }
}

void Multiply(const Int8Part& part, float* scratch) {
  const int64_t rows = part.input.rows;
  if (rows <= kFewRows) return MultiplyFew(part);
  const int64_t most = std::max<int64_t>(kStretchBytes / part.input.inputs, kFewRows);
  const int64_t stretches = (rows + most - 1) / most;
  for (int64_t k = 0; k < stretches; ++k) {
    MultiplyStretch(part, rows * k / stretches, rows * (k + 1) / stretches, reinterpret_cast<PanelBlock*>(scratch));
  }
}

// The same blocks as int8.cc's.
void Quantize(const float* row, int64_t inputs, int8_t* values, float* scales) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 most = _mm256_set1_ps(0x1.fffffep127f);
  for (int64_t at = 0; at < inputs; at += kBlockElements) {
    __m256 given[4];
    __m256 finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    __m256 largest_of_8 = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      given[i] = _mm256_loadu_ps(row + at + 8 * i);
      const __m256 size = _mm256_andnot_ps(sign, given[i]);
      finite = _mm256_and_ps(finite, _mm256_cmp_ps(size, most, _CMP_LE_OQ));
      largest_of_8 = _mm256_max_ps(largest_of_8, size);
    }
    const bool is_finite = _mm256_movemask_ps(finite) == 0xff;
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(largest_of_8), _mm256_extractf128_ps(largest_of_8, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    const float largest = _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    const bool is_usable = is_finite && largest >= kLeastLargest;
    *scales++ = is_usable ? largest / kLargestInteger : is_finite ? 0 : __builtin_nanf("");
    auto* const to = reinterpret_cast<__m256i*>(values + at);
    if (!is_usable) {
      _mm256_storeu_si256(to, _mm256_setzero_si256());
      continue;
    }
    const __m256 factor = _mm256_set1_ps(kLargestInteger / largest);
    __m256i integers[4];
    for (int i = 0; i < 4; ++i) integers[i] = _mm256_cvtps_epi32(_mm256_mul_ps(given[i], factor));
    const __m256i low = _mm256_packs_epi32(integers[0], integers[1]);
    const __m256i high = _mm256_packs_epi32(integers[2], integers[3]);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(to, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order));
  }
}

}  // namespace

}  // namespace vkv::kernels

VKV_TARGET_END

namespace vkv::kernels {

const Int8Kernels* Avx2Int8() {
  static constexpr Int8Kernels kKernels = {Quantize, Multiply};
  return &kKernels;
}

}  // namespace vkv::kernels
#else
const vkv::kernels::Int8Kernels* vkv::kernels::Avx2Int8() { return PortableInt8(); }
#endif
