// Float16: IEEE half precision and bfloat16 to and from float, in integer arithmetic, one number at a time.
//
// Exact for every value, NaN and subnormal numbers included; to 16 bits it rounds to nearest, ties to even, as the
// machines do. The vectors of cpu/ do the same many at a time. Pure functions.
#ifndef VKV_KERNELS_FLOAT16_H_
#define VKV_KERNELS_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace vkv::kernels {

// Elements as they lie in memory.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

inline float ToFloat(float value) { return value; }

inline float ToFloat(Bfloat value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

inline float ToFloat(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // infinite, NaN
  // With the exponent's bias still wrong by 112 the multiplication is exact, for subnormal numbers too.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline Bfloat ToBfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};  // NaN stays NaN
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

inline Half ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | (rest >> 13 & 0x3ffu))};
  if (rest >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65,520 and more: infinite
  if (rest < 0x38800000u) {                                                 // subnormal: the adder rounds
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  return {static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13)};
}

// The same by type, for templates.
template <typename T>
T FromFloat(float value);
template <>
inline float FromFloat<float>(float value) {
  return value;
}
template <>
inline Half FromFloat<Half>(float value) {
  return ToHalf(value);
}
template <>
inline Bfloat FromFloat<Bfloat>(float value) {
  return ToBfloat(value);
}

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_FLOAT16_H_
