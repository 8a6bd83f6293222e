#include "crc32c_fold.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "crc32c_polynomial.h"
#endif

namespace vkv {

#if defined(__x86_64__)
namespace {

constexpr size_t kLineBytes = 64;

// 128 bits further on are worth the same when their two halves are multiplied by what x to the power of the distance
// leaves. A product of two reflected halves is one bit short, hence the powers less one.
struct Factors {
  uint64_t first_half;
  uint64_t second_half;
};
constexpr Factors FactorsFor(uint64_t bits) {
  return {uint64_t{PowerOfX(bits + 63)} << 32, uint64_t{PowerOfX(bits - 1)} << 32};
}
constexpr Factors kByTurn = FactorsFor(8 * kFoldBytes);

namespace avx512 {
#define VKV_FOLD_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2")))

using Vector = __m512i;
// Both halves' products, which are added to what lies there.
struct Products {
  Vector first, second;
};

VKV_FOLD_TARGET inline Vector Load(const uint8_t* from) { return _mm512_loadu_si512(from); }
VKV_FOLD_TARGET inline void Store(uint8_t* to, Vector bytes) { _mm512_store_si512(to, bytes); }
VKV_FOLD_TARGET inline void Stream(uint8_t* to, Vector bytes) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bytes);
}
VKV_FOLD_TARGET inline Vector Wide(const Factors& by) {
  const auto first = static_cast<int64_t>(by.first_half), second = static_cast<int64_t>(by.second_half);
  return _mm512_set_epi64(second, first, second, first, second, first, second, first);
}
VKV_FOLD_TARGET inline Products First(uint32_t state) {
  return {_mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int32_t>(state))), _mm512_setzero_si512()};
}
VKV_FOLD_TARGET inline Products Further(Vector sum, Vector by) {
  return {_mm512_clmulepi64_epi128(sum, by, 0x00), _mm512_clmulepi64_epi128(sum, by, 0x11)};
}
VKV_FOLD_TARGET inline Vector Onto(Vector bytes, const Products& sum) {
  constexpr int kAllThree = 0x96;  // a ^ b ^ c
  return _mm512_ternarylogic_epi64(sum.first, sum.second, bytes, kAllThree);
}

#include "crc32c_fold_inl.h"
#undef VKV_FOLD_TARGET
}  // namespace avx512

namespace avx2 {
#define VKV_FOLD_TARGET __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))

using Vector = __m256i;
struct Products {
  Vector first, second;
};

VKV_FOLD_TARGET inline Vector Load(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
VKV_FOLD_TARGET inline void Store(uint8_t* to, Vector bytes) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), bytes);
}
VKV_FOLD_TARGET inline void Stream(uint8_t* to, Vector bytes) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bytes);
}
VKV_FOLD_TARGET inline Vector Wide(const Factors& by) {
  const auto first = static_cast<int64_t>(by.first_half), second = static_cast<int64_t>(by.second_half);
  return _mm256_set_epi64x(second, first, second, first);
}
VKV_FOLD_TARGET inline Products First(uint32_t state) {
  return {_mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int32_t>(state))), _mm256_setzero_si256()};
}
VKV_FOLD_TARGET inline Products Further(Vector sum, Vector by) {
  return {_mm256_clmulepi64_epi128(sum, by, 0x00), _mm256_clmulepi64_epi128(sum, by, 0x11)};
}
VKV_FOLD_TARGET inline Vector Onto(Vector bytes, const Products& sum) {
  return _mm256_xor_si256(bytes, _mm256_xor_si256(sum.first, sum.second));
}

#include "crc32c_fold_inl.h"
#undef VKV_FOLD_TARGET
}  // namespace avx2

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("sse4.2");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

}  // namespace

const Folding* AllFoldings() {
  static const Folding all[kFoldings] = {{"avx512", HasAvx512(), avx512::Fold, avx512::FoldAndCopy},
                                         {"avx2", HasAvx2(), avx2::Fold, avx2::FoldAndCopy}};
  return all;
}

#else

const Folding* AllFoldings() {
  static const Folding none[kFoldings] = {};
  return none;
}

#endif

const Folding* BestFolding() {
  static const Folding* const best = [] {
    for (size_t k = 0; k < kFoldings; ++k)
      if (AllFoldings()[k].is_supported) return &AllFoldings()[k];
    return static_cast<const Folding*>(nullptr);
  }();
  return best;
}

}  // namespace vkv
