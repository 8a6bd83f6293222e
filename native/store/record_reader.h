// Reads of one record: its header, and parts of its stripes scattered into the caller's memory, each chunk checked
// against its sum unless the caller does it. A read is planned into pieces that threads take in parallel. Threads: any.
#ifndef VKV_STORE_RECORD_READER_H_
#define VKV_STORE_RECORD_READER_H_

#include <atomic>
#include <memory>
#include <vector>

#include "store/read_plan.h"
#include "store/store_context.h"

namespace vkv::store {

enum class ReadState : uint8_t { kGood = 0, kAbsent = 1, kCorrupt = 2, kIo = 3 };

// The header of the record as its file has it now; `moved`: bytes that were read for it. Counts failures.
ReadState ReadRecordHeader(StoreContext& context, const RecordPlace& place, RecordHeader& header, uint64_t& moved);

struct ReadRequest {
  uint32_t stripe = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint8_t* target = nullptr;  // null: only check
};

// Rows of tokens of several stripes, packed one behind the other into `target`.
struct TokenRequests {
  struct Part {
    uint32_t stripe;
    size_t end;  // of its tokens in the list below; they begin where the part before ends
  };
  std::vector<Part> parts;
  std::vector<uint32_t> tokens;  // of the record, the first is 0; in any order
  std::span<uint8_t> target;     // all of it is filled, or no part is good
};

// One get. Plan once; then Run each piece once, on any thread, the pieces of several threads in parallel.
class RecordRead {
 public:
  RecordRead(StoreContext& context, RecordPlace place, std::vector<ReadRequest> requests, bool checks);
  RecordRead(StoreContext& context, RecordPlace place, TokenRequests tokens);

  // Reads the header and divides the work. Returns how many pieces there are; 0 where all states are known.
  size_t Plan();
  // The same for every byte of the record, one state per stripe; no targets.
  size_t PlanWhole();
  // True for the last piece to end.
  bool Run(size_t piece, AlignedBuffer& scratch);

  // One ReadState per request or part; for one thread once all pieces are over, as are the two counts.
  std::vector<uint8_t> TakeStates();
  // Bytes that were read from the file, the header's included.
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t read_chunks() const { return plan_.chunks.size(); }

 private:
  std::shared_ptr<const RecordHeader> ReadHeader();
  void PlanRanges(const RecordHeader& header);
  void PlanTokens(const RecordHeader& header);
  size_t Divide();
  // Reads a piece into its targets. False where it was not read, and must be through the scratch buffer.
  bool ReadStraight(const ReadPlan::Piece& piece, AlignedBuffer& scratch);
  // Checks a chunk and copies what is wanted of it.
  void Take(const ReadPlan::Chunk& chunk, const uint8_t* data, uint64_t data_from, uint64_t data_bytes);
  void Fail(size_t request, ReadState state);
  void FailAll(ReadState state);
  void MakeStates(size_t count);

  StoreContext& context_;
  const RecordPlace place_;
  const bool is_of_tokens_;
  const bool checks_;
  std::vector<ReadRequest> requests_;
  TokenRequests tokens_;
  ReadPlan plan_;
  std::atomic<size_t> left_{0};
  std::atomic<uint64_t> read_bytes_{0};
  size_t state_count_ = 0;
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_RECORD_READER_H_
