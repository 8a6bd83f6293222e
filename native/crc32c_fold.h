// CRC-32C by carry-less multiplication, 256 bytes at a time, and the same while the bytes are copied past the CPU's
// caches: then a sum costs what the copy leaves idle. For x86-64 with VPCLMULQDQ, and AVX-512 or AVX2. Owns nothing.
// Threads: any.
#ifndef VKV_CRC32C_FOLD_H_
#define VKV_CRC32C_FOLD_H_

#include <cstddef>
#include <cstdint>

namespace vkv {

constexpr size_t kFoldBytes = 256;

// How it is done with the vectors of one instruction set.
struct Folding {
  const char* name;
  // Whether this processor, and the system, can do it.
  bool is_supported;
  // What the register of the sum (not inverted) is after `bytes` bytes more. Pre: a multiple of kFoldBytes, not 0.
  uint32_t (*fold)(const uint8_t* from, size_t bytes, uint32_t state);
  // The same, and copies them. Pre also: `to` is a multiple of 64, and the ranges do not overlap.
  uint32_t (*fold_and_copy)(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t state);
};

// All there are, widest first; and the first that is supported, or null. Both stay as they are.
constexpr size_t kFoldings = 2;
const Folding* AllFoldings();
const Folding* BestFolding();

}  // namespace vkv

#endif  // VKV_CRC32C_FOLD_H_
