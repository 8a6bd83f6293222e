// ReadPlan: which chunks of a record a read needs, in which pieces they come from the file, and where their bytes go.
// A chunk is read and checked whole, however little of it is wanted. Owns its lists; no I/O. For one thread; once
// divided, any may read it.
#ifndef VKV_STORE_READ_PLAN_H_
#define VKV_STORE_READ_PLAN_H_

#include <cstddef>
#include <span>
#include <vector>

#include "store/store_format.h"

namespace vkv::store {

// Of memory that pieces are read through; a record is written by as much at a time.
inline constexpr uint64_t kScratchBytes = (1 << 20) + 2 * kBlockBytes;

// Consecutive bytes of a stripe, and where they go.
struct StripeSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint8_t* target = nullptr;  // null: only check
};

struct ReadPlan {
  // What of a chunk goes where.
  struct Copy {
    uint32_t skip, take;
    uint8_t* target;
  };
  struct Chunk {
    uint64_t file_offset;
    uint32_t bytes;
    uint32_t sum;
    uint32_t request;
    size_t first_copy, end_copy;
  };
  // Chunks that are read with one call.
  struct Piece {
    size_t first_chunk, end_chunk;
    uint64_t file_from, file_bytes;  // whole blocks
    bool is_straight;                // its chunks can go from the file into their targets
  };
  // How chunks become pieces.
  struct Rules {
    bool is_direct = false;        // the file has O_DIRECT
    bool can_be_straight = false;  // chunks may go into their targets by themselves
    uint64_t gap_bytes = 0;        // between two chunks that are rather read than jumped over
  };

  // Chunks of one piece at most, each with a gap before it, where it is straight.
  static constexpr size_t kMostParts = 512;

  // Adds what a request wants of a stripe of the record that lies at `record_offset`; spans ascend by offset.
  // REQUIRES: they lie within the stripe.
  void Add(uint32_t request, const RecordHeader& header, uint64_t record_offset, const StripeEntry& stripe,
           std::span<const StripeSpan> spans);
  // Makes pieces of all that was added; once.
  void Divide(const Rules& rules);

  std::vector<Copy> copies;
  std::vector<Chunk> chunks;
  std::vector<Piece> pieces;

 private:
  bool IsStraight(const Chunk& chunk, const Rules& rules) const;
};

}  // namespace vkv::store

#endif  // VKV_STORE_READ_PLAN_H_
