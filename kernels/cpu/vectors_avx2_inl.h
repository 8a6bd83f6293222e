// Vectors of AVX2 with FMA and F16C: 8 floats. Included by simd_avx2.cc only, inside its namespace and target.

constexpr int kWidth = 8;
constexpr int kTileRows = 4;  // of the matrix product's tile in registers
constexpr int kTileVectors = 2;
constexpr int kDotRows = 4;  // of its tile where both operands lie along their inputs
constexpr int kDotOutputs = 3;

using Vector = __m256;

inline Vector Zero() { return _mm256_setzero_ps(); }
inline Vector Set(float value) { return _mm256_set1_ps(value); }
inline Vector Load(const float* from) { return _mm256_loadu_ps(from); }
inline Vector Load(const Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Vector Load(const Bfloat* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline void Store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
inline void Store(Half* to, Vector value) {
  const __m128i bits = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
}
inline void Store(Bfloat* to, Vector value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i result = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  // Packing works within halves; the permutation brings the two quarters that count together.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}
inline Vector Add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector Subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline Vector Multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
inline Vector Divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
inline Vector MultiplyAdd(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }
// Where one is NaN, b.
inline Vector Larger(Vector a, Vector b) { return _mm256_max_ps(a, b); }
inline float SumOf(Vector value) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// The sums of 8 vectors, in one.
inline Vector SumsOf(const Vector* v) {
  const Vector low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const Vector high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}
inline float LargestOf(Vector value) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Vector Round(Vector value) { return _mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// value · 2ⁿ, n whole and −126 … 127, or NaN where value is.
inline Vector ScaleByPower(Vector value, Vector n) {
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(value, _mm256_castsi256_ps(power));
}
// value where x is not below `least`, NaN included, else zero.
inline Vector ZeroBelow(Vector x, Vector least, Vector value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_NLT_UQ), value);
}
// a · b + sum, rounded once: the same bits on every machine.
inline Vector FusedMultiplyAdd(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }
inline bool HasNan(Vector a, Vector b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }
// By the set of lanes that are kept, a bit for each: their numbers, one behind the other.
struct KeptLanes {
  uint8_t numbers[1 << 8][8] = {};
  constexpr KeptLanes() {
    for (int kept = 0; kept < 1 << 8; ++kept) {
      for (int lane = 0, count = 0; lane < 8; ++lane) {
        if ((kept >> lane & 1) != 0) numbers[kept][count++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
// Writes the lanes that are `low` … `high` and their numbers, from `first` on, one behind the other, and returns how
// many. Up to kWidth entries behind them are overwritten.
inline int Compress(Vector value, Vector low, Vector high, int32_t first, float* values, int32_t* ids) {
  const int kept =
      _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(value, low, _CMP_GE_OQ), _mm256_cmp_ps(value, high, _CMP_LE_OQ)));
  if (kept == 0) return 0;
  static constexpr KeptLanes kKeptLanes;
  const auto* const numbers = reinterpret_cast<const __m128i*>(kKeptLanes.numbers[kept]);
  const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(numbers));
  _mm256_storeu_ps(values, _mm256_permutevar8x32_ps(value, lanes));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(ids), _mm256_add_epi32(lanes, _mm256_set1_epi32(first)));
  return __builtin_popcount(static_cast<unsigned>(kept));
}
