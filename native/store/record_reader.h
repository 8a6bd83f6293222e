// Reads of one record: headers, and ranges of stripes scattered into the caller's memory, each chunk checked against
// its sum. A read is planned into pieces that threads take in parallel. Threads: any.
#ifndef VKV_STORE_RECORD_READER_H_
#define VKV_STORE_RECORD_READER_H_

#include <atomic>
#include <memory>
#include <vector>

#include "store/store_context.h"

namespace vkv::store {

enum class ReadState : uint8_t { kGood = 0, kAbsent = 1, kCorrupt = 2, kIo = 3 };

// The header of the record as its file has it now. Counts failures.
ReadState ReadRecordHeader(StoreContext& context, const RecordPlace& place, RecordHeader& header);

struct ReadRequest {
  uint32_t stripe = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint8_t* target = nullptr;  // null: only check
};

// One get. Plan once; then Run each piece once, on any thread, the pieces of several threads in parallel.
class RecordRead {
 public:
  RecordRead(StoreContext& context, RecordPlace place, std::vector<ReadRequest> requests);

  // Reads the header and divides the work. Returns how many pieces there are; 0 where all states are known.
  size_t Plan();
  // The same for every byte of the record, one state per stripe; no targets.
  size_t PlanWhole();
  // True for the last piece to end.
  bool Run(size_t piece, AlignedBuffer& scratch);

  // One ReadState per request; for one thread once all pieces are over.
  std::vector<uint8_t> TakeStates();

 private:
  // A chunk of a stripe, and what of it a request wants.
  struct Chunk {
    uint64_t file_offset;
    uint32_t bytes;
    uint32_t sum;
    uint32_t request;
    uint32_t skip;
    uint32_t take;
    uint8_t* target;
  };
  struct Piece {
    size_t first_chunk, end_chunk;
    uint64_t file_from, file_bytes;  // whole blocks
    bool is_straight;                // its chunks can go from the file into their targets
  };

  bool ReadHeader();
  void AddChunks(uint32_t request, const StripeEntry& stripe);
  size_t Divide();
  bool IsStraight(const Chunk& chunk) const;
  // Reads a piece into its targets. False where it was not read, and must be through the scratch buffer.
  bool ReadStraight(const Piece& piece, AlignedBuffer& scratch);
  void Check(const Chunk& chunk, const uint8_t* data, uint64_t data_from, uint64_t data_bytes);
  void Fail(uint32_t request, ReadState state);

  StoreContext& context_;
  const RecordPlace place_;
  std::vector<ReadRequest> requests_;
  RecordHeader header_;
  std::vector<Chunk> chunks_;
  std::vector<Piece> pieces_;
  std::atomic<size_t> left_{0};
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_RECORD_READER_H_
