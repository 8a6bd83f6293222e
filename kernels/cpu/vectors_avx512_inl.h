// Vectors of AVX-512: 16 floats. Included by simd_avx512.cc only, inside its namespace and target.

constexpr int kWidth = 16;
constexpr int kTileRows = 4;  // of the matrix product's tile in registers
constexpr int kTileVectors = 4;
constexpr int kDotRows = 6;  // of its tile where both operands lie along their inputs
constexpr int kDotOutputs = 4;

using Vector = __m512;

inline Vector Zero() { return _mm512_setzero_ps(); }
inline Vector Set(float value) { return _mm512_set1_ps(value); }
inline Vector Load(const float* from) { return _mm512_loadu_ps(from); }
inline Vector Load(const Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Vector Load(const Bfloat* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline void Store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
inline void Store(Half* to, Vector value) {
  const __m256i bits = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
}
inline void Store(Bfloat* to, Vector value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i result = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(result));
}
inline Vector Add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
inline Vector Subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
inline Vector Multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
inline Vector Divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
inline Vector MultiplyAdd(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }
// Where one is NaN, b.
inline Vector Larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline float SumOf(Vector value) { return _mm512_reduce_add_ps(value); }
// Quarters 0 + 1 and 2 + 3 of a, then those of b.
inline Vector AddQuarters(Vector a, Vector b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
// The sums of four vectors' quarters: lane 4q + i has quarter q of v_i.
inline Vector QuarterSums(Vector v0, Vector v1, Vector v2, Vector v3) {
  const Vector a = _mm512_add_ps(_mm512_unpacklo_ps(v0, v1), _mm512_unpackhi_ps(v0, v1));
  const Vector b = _mm512_add_ps(_mm512_unpacklo_ps(v2, v3), _mm512_unpackhi_ps(v2, v3));
  const __m512d c = _mm512_castps_pd(a);
  const __m512d d = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}
// The sums of 16 vectors from the quarter sums of each four.
inline Vector SumsOfQuarters(const Vector* four) {
  return AddQuarters(AddQuarters(four[0], four[1]), AddQuarters(four[2], four[3]));
}
// The sums of 16 vectors, in one: halves are added while they are brought together, which is a third of the work of 16
// sums.
inline Vector SumsOf(const Vector* v) {
  Vector four[4];
  for (int i = 0; i < 4; ++i) four[i] = QuarterSums(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
  return SumsOfQuarters(four);
}
inline float LargestOf(Vector value) { return _mm512_reduce_max_ps(value); }
inline Vector Round(Vector value) { return _mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// value · 2ⁿ, n whole, or NaN where value is.
inline Vector ScaleByPower(Vector value, Vector n) { return _mm512_scalef_ps(value, n); }
// value where x is not below `least`, NaN included, else zero.
inline Vector ZeroBelow(Vector x, Vector least, Vector value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), value);
}
// a · b + sum, rounded once: the same bits on every machine.
inline Vector FusedMultiplyAdd(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }
inline bool HasNan(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
// Writes the lanes that are `low` … `high` and their numbers, from `first` on, one behind the other, and returns how
// many. Up to kWidth entries behind them are overwritten.
inline int Compress(Vector value, Vector low, Vector high, int32_t first, float* values, int32_t* ids) {
  const __mmask16 kept = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(value, low, _CMP_GE_OQ), value, high, _CMP_LE_OQ);
  if (kept == 0) return 0;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(kept, value));
  _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(kept, _mm512_add_epi32(lanes, _mm512_set1_epi32(first))));
  return __builtin_popcount(kept);
}
