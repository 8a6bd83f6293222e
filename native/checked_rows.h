// Rows of memory that is divided into chunks, each with a checksum: rows are copied out, and the chunks that hold them
// are checked first. For stores of blocks in memory. Threads: any.
#ifndef VKV_CHECKED_ROWS_H_
#define VKV_CHECKED_ROWS_H_

#include <cstdint>
#include <span>

namespace vkv {

// Writes the CRC-32C of each chunk of `memory`, the last of which may be shorter. Returns that of all of it.
// REQUIRES: `sums` has an entry for each chunk.
uint32_t SumChunks(std::span<const uint8_t> memory, uint64_t chunk_bytes, std::span<uint32_t> sums);

struct CopiedRows {
  bool is_good = false;  // every chunk that was needed has its sum
  uint64_t chunks = 0;   // that were checked
};

// Copies rows of `row_bytes` one behind the other into `target`. Rows that ascend check each chunk once.
// REQUIRES: the rows lie within `memory`, `target` has room for them, `sums` has an entry for each chunk.
CopiedRows CopyCheckedRows(std::span<const uint8_t> memory, uint64_t row_bytes, std::span<const int32_t> rows,
                           uint64_t chunk_bytes, std::span<const uint32_t> sums, uint8_t* target);

}  // namespace vkv

#endif  // VKV_CHECKED_ROWS_H_
