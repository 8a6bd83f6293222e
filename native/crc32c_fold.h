// CRC-32C by carry-less multiplication, 256 bytes at a time, and the same while the bytes are copied past the CPU's
// caches: then a sum costs what the copy leaves idle. For x86-64 with AVX-512 and VPCLMULQDQ. Owns nothing. Threads:
// any.
#ifndef VKV_CRC32C_FOLD_H_
#define VKV_CRC32C_FOLD_H_

#include <cstddef>
#include <cstdint>

namespace vkv {

constexpr size_t kFoldBytes = 256;

// Whether this processor, and the system, can do it. The other two may be called only where they can.
bool CanFold();
// What the register of the sum (not inverted) is after `bytes` bytes more. Pre: a multiple of kFoldBytes, not 0.
uint32_t Fold(const uint8_t* from, size_t bytes, uint32_t state);
// The same, and copies them. Pre also: `to` is a multiple of 64, and the ranges do not overlap.
uint32_t FoldAndCopy(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t state);

}  // namespace vkv

#endif  // VKV_CRC32C_FOLD_H_
