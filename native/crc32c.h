// CRC-32C (Castagnoli, reflected, as in iSCSI and SSE 4.2): the sum of all K and V that leave the device. Computed with
// carry-less multiplication where the processor has it wide (crc32c_fold), else with its own instruction, three streams
// at a time, and by table elsewhere. Owns nothing. Threads: any.
#ifndef VKV_CRC32C_H_
#define VKV_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace vkv {

// The sum of `bytes` bytes behind those whose sum is `before` (0: none).
uint32_t Crc32c(const void* data, size_t bytes, uint32_t before = 0);
// The same, and copies them: past the CPU's caches where it can. The ranges do not overlap.
uint32_t CopyWithCrc32c(void* to, const void* from, size_t bytes, uint32_t before = 0);
// The sum without the processor's instruction.
uint32_t Crc32cByTable(const void* data, size_t bytes, uint32_t before = 0);
// Makes the sum of a range of the sums of its two parts, the second of which has `bytes` bytes.
class Crc32cJoint {
 public:
  explicit Crc32cJoint(uint64_t bytes);
  uint32_t Join(uint32_t first, uint32_t second) const;

 private:
  uint32_t power_;  // by which the first sum is moved on
};
// A static string: "avx512", "sse4.2", "armv8" or "table".
const char* Crc32cKind();

}  // namespace vkv

#endif  // VKV_CRC32C_H_
