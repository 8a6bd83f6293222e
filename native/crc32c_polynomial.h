// Arithmetic of CRC-32C's polynomials at compile time: 32 coefficients in a word, bit 31 is x⁰. Threads: any.
#ifndef VKV_CRC32C_POLYNOMIAL_H_
#define VKV_CRC32C_POLYNOMIAL_H_

#include <cstdint>

namespace vkv {

constexpr uint32_t kCrc32cPolynomial = 0x82f63b78;

constexpr uint32_t TimesX(uint32_t value) { return (value & 1) != 0 ? (value >> 1) ^ kCrc32cPolynomial : value >> 1; }

constexpr uint32_t Product(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1, b = TimesX(b))
    if ((a & bit) != 0) product ^= b;
  return product;
}

// The remainder of x to the power of `exponent`.
constexpr uint32_t PowerOfX(uint64_t exponent) {
  uint32_t power = 1u << 31;   // x⁰
  uint32_t square = 1u << 30;  // x¹
  for (uint64_t left = exponent; left != 0; left >>= 1, square = Product(square, square))
    if ((left & 1) != 0) power = Product(square, power);
  return power;
}

}  // namespace vkv

#endif  // VKV_CRC32C_POLYNOMIAL_H_
