#include "checked_rows.h"

#include <algorithm>
#include <cstring>

#include "crc32c.h"

namespace vkv {

uint32_t SumChunks(std::span<const uint8_t> memory, uint64_t chunk_bytes, std::span<uint32_t> sums) {
  uint32_t whole = 0;
  const Crc32cJoint whole_chunk(chunk_bytes);
  for (uint64_t at = 0, chunk = 0; at < memory.size(); at += chunk_bytes, ++chunk) {
    const uint64_t bytes = std::min<uint64_t>(chunk_bytes, memory.size() - at);
    sums[chunk] = Crc32c(memory.data() + at, bytes);
    const Crc32cJoint joint = bytes == chunk_bytes ? whole_chunk : Crc32cJoint(bytes);
    whole = joint.Join(whole, sums[chunk]);
  }
  return whole;
}

CopiedRows CopyCheckedRows(std::span<const uint8_t> memory, uint64_t row_bytes, std::span<const int32_t> rows,
                           uint64_t chunk_bytes, std::span<const uint32_t> sums, uint8_t* target) {
  CopiedRows copied = {true, 0};
  uint64_t checked_from = 0, checked_end = 0;  // chunks
  for (const int32_t row : rows) {
    const uint64_t from = static_cast<uint64_t>(row) * row_bytes;
    const uint64_t first = from / chunk_bytes, end = (from + row_bytes + chunk_bytes - 1) / chunk_bytes;
    for (uint64_t chunk = first; chunk < end && row_bytes > 0; ++chunk) {
      if (chunk >= checked_from && chunk < checked_end) continue;
      const uint64_t at = chunk * chunk_bytes, bytes = std::min<uint64_t>(chunk_bytes, memory.size() - at);
      ++copied.chunks;
      if (Crc32c(memory.data() + at, bytes) != sums[chunk]) copied.is_good = false;
    }
    checked_from = first;
    checked_end = end;
    std::memcpy(target, memory.data() + from, row_bytes);
    target += row_bytes;
  }
  return copied;
}

}  // namespace vkv
