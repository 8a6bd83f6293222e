#include "crc32c_fold.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "crc32c_polynomial.h"
#define VKV_FOLD_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2")))
#endif

namespace vkv {

#if defined(__x86_64__)
namespace {

// 128 bits further on are worth the same when their two halves are multiplied by what x to the power of the distance
// leaves. A product of two reflected halves is one bit short, hence the powers less one.
struct Factors {
  uint64_t first_half;
  uint64_t second_half;
};
constexpr Factors FactorsFor(uint64_t bits) {
  return {uint64_t{PowerOfX(bits + 63)} << 32, uint64_t{PowerOfX(bits - 1)} << 32};
}
constexpr Factors kBy2048 = FactorsFor(2048), kBy512 = FactorsFor(512), kBy128 = FactorsFor(128);

VKV_FOLD_TARGET inline __m512i Wide(const Factors& by) {
  const auto first = static_cast<int64_t>(by.first_half), second = static_cast<int64_t>(by.second_half);
  return _mm512_set_epi64(second, first, second, first, second, first, second, first);
}

// `behind` with what `sum`, which lies before it by the distance of the factors, leaves there.
VKV_FOLD_TARGET inline __m512i Onto(__m512i behind, __m512i sum, __m512i factors) {
  constexpr int kAllThree = 0x96;  // a ^ b ^ c
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                   _mm512_clmulepi64_epi128(sum, factors, 0x11), behind, kAllThree);
}

template <bool kCopies>
VKV_FOLD_TARGET inline __m512i Take(uint8_t* to, const uint8_t* from) {
  const __m512i bytes = _mm512_loadu_si512(from);
  if constexpr (kCopies) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bytes);
  return bytes;
}

template <bool kCopies>
VKV_FOLD_TARGET uint32_t FoldAll(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t state) {
  const __m512i far = Wide(kBy2048), near = Wide(kBy512);
  __m512i sums[4];
  for (size_t k = 0; k < 4; ++k) sums[k] = Take<kCopies>(to + 64 * k, from + 64 * k);
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int32_t>(state))));
  for (size_t at = kFoldBytes; at < bytes; at += kFoldBytes)
    for (size_t k = 0; k < 4; ++k) sums[k] = Onto(Take<kCopies>(to + at + 64 * k, from + at + 64 * k), sums[k], far);
  if constexpr (kCopies) _mm_sfence();  // the thread that is told of the copy sees it
  __m512i sum = sums[0];
  for (size_t k = 1; k < 4; ++k) sum = Onto(sums[k], sum, near);
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, sum);
  __m128i last = _mm_set_epi64x(static_cast<int64_t>(words[1]), static_cast<int64_t>(words[0]));
  const __m128i step =
      _mm_set_epi64x(static_cast<int64_t>(kBy128.second_half), static_cast<int64_t>(kBy128.first_half));
  for (size_t k = 2; k < 8; k += 2) {
    const __m128i behind = _mm_set_epi64x(static_cast<int64_t>(words[k + 1]), static_cast<int64_t>(words[k]));
    last = _mm_xor_si128(behind,
                         _mm_xor_si128(_mm_clmulepi64_si128(last, step, 0x00), _mm_clmulepi64_si128(last, step, 0x11)));
  }
  const uint64_t first = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_extract_epi64(last, 0)));
  return static_cast<uint32_t>(_mm_crc32_u64(first, static_cast<uint64_t>(_mm_extract_epi64(last, 1))));
}

}  // namespace

bool CanFold() {
  static const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq") &&
                          __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
  return can;
}

uint32_t Fold(const uint8_t* from, size_t bytes, uint32_t state) {
  return FoldAll</*kCopies=*/false>(nullptr, from, bytes, state);
}

uint32_t FoldAndCopy(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t state) {
  return FoldAll</*kCopies=*/true>(to, from, bytes, state);
}

#else

bool CanFold() { return false; }
uint32_t Fold(const uint8_t*, size_t, uint32_t state) { return state; }
uint32_t FoldAndCopy(uint8_t*, const uint8_t*, size_t, uint32_t state) { return state; }

#endif

}  // namespace vkv
